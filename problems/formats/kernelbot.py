"""KernelBot: folders with a `task.yml` and the Python files that it names; one problem a benchmark or test.

Only read. The reference is `ref_kernel(data)` over what `generate_input(..., seed=...)` draws.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kernelwright.problems.formats.reading import Entry, Unsupported, entry_of, entry_with, fault_of, first_line
from kernelwright.problems.problem import Origin, ProblemError, library
from kernelwright.problems.source import bound_names, imported_modules, parse, read_text

TASK, SUBMISSION, REFERENCE = "task.yml", "@SUBMISSION@", "reference.py"
NEEDED = ("generate_input", "ref_kernel")
SOURCE = '''"""{title}"""
import sys as _sys
import types as _types

import torch as _torch

{modules}
for _name, _text in ({names}):
    _module = _types.ModuleType(_name)
    _sys.modules[_name] = _module
    exec(compile(_text, _name + ".py", "exec"), _module.__dict__)


def _copied(data):
    if isinstance(data, _torch.Tensor):
        return data.clone()
    return type(data)(_copied(item) for item in data) if isinstance(data, (list, tuple)) else data


class Model(_torch.nn.Module):
    """{title}"""

    def forward(self, data):
        return _module.ref_kernel(_copied(data))


def get_inputs():
    seed = int(_torch.randint(2**31, ()))
    return [_module.generate_input(**{settings!r}, seed=seed)]


def get_init_inputs():
    return []
'''


class Task(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    files: list[dict[str, str]]
    lang: str = "py"
    description: str = ""
    tests: list[dict[str, Any]] = []
    benchmarks: list[dict[str, Any]] = []


def read_task(folder: Path, name: str) -> Iterator[Entry]:
    """Yield the benchmarks of a task, or its tests where it has none. Raises `ProblemError`."""
    task = _task(folder / TASK)
    notes = tuple(f"field {field!r} of {TASK} is not used" for field in task.model_extra or ())
    cases = task.benchmarks or task.tests
    if not cases:
        raise ProblemError(f"{TASK} has neither benchmarks nor tests; add one")
    for number, case in enumerate(cases):
        origin = Origin(format="kernelbot", id=f"{name}/{number}", title=name)
        yield entry_of(origin, partial(_entry, task, folder, origin, case, notes))


def _task(path: Path) -> Task:
    """Return the content of a `task.yml`. Raises `ProblemError`."""
    yaml = library("yaml", f"reading {path}")
    try:
        return Task.model_validate(yaml.safe_load(read_text(path)))
    except ValidationError as error:
        raise ProblemError(f"{path}: {fault_of(error)}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        raise ProblemError(f"{path} is not valid YAML (line {where.line + 1 if where else '?'}); correct it") from None


def _entry(task: Task, place: Path, origin: Origin, case: dict[str, Any], notes: tuple[str, ...]) -> Entry:
    if task.lang != "py":
        raise Unsupported(f"it is a task for {task.lang!r} submissions; only those for Python are read")
    settings = {key: value for key, value in case.items() if key != "seed"}
    if not all(str(key).isidentifier() and isinstance(value, int | float | str) for key, value in settings.items()):
        raise Unsupported("its settings are more than names with numbers or texts")
    title = first_line(task.description) or first_line(origin.title)
    texts = _texts(task, place)
    modules = "\n\n".join(f"_{name} = {_quoted(text)}" for name, text in texts.items())
    names = " ".join(f'("{name}", _{name}),' for name in texts)
    name = f"{origin.title.replace('/', '-')}-{origin.id.rpartition('/')[2]}"
    source = SOURCE.format(title=title, modules=modules, names=names, settings=settings)
    return entry_with(origin, source, notes, name=name, title=title, family="kernelbot")


def _texts(task: Task, place: Path) -> dict[str, str]:
    """Return the Python files that the reference needs, by module, in the order in which they can be run."""
    found: dict[str, str] = {}
    for file in task.files:
        name, source = file.get("name", ""), file.get("source", "")
        if source == SUBMISSION or not name.endswith(".py") or "/" in name:
            continue
        found[name.removesuffix(".py")] = read_text(place / source)
    if "reference" not in found:
        raise ProblemError(f"{place / TASK} names no file {REFERENCE}; add it")
    defined = set(bound_names(parse(found["reference"], str(place / REFERENCE))))
    if missing := [name for name in NEEDED if name not in defined]:
        raise ProblemError(f"{place / REFERENCE} has no {missing[0]}; add it")
    return {name: found[name] for name in _needed("reference", found)}


def _needed(name: str, texts: dict[str, str], above: tuple[str, ...] = ()) -> list[str]:
    found: list[str] = []
    for _, module in imported_modules(parse(texts[name], f"{name}.py")):
        if module in texts and module not in (*above, name):
            found += [one for one in _needed(module, texts, (*above, name)) if one not in found]
    return [*found, name]


def _quoted(text: str) -> str:
    """Return a literal of the text, readable where that is possible."""
    plain = "'''" not in text and "\\" not in text and not text.endswith("'")
    return f"'''{text}'''" if plain else repr(text)
