"""robust-kbench: task folders with `func_forward.py` and `config_forward.json`; one problem a configuration."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kernelwright.problems.formats.reading import Entry, Unsupported, entry_of, entry_with
from kernelwright.problems.problem import Origin, ProblemError, first_fault
from kernelwright.problems.source import check_reference, read_json, read_text, title_of
from kernelwright.problems.source_rewriting import configured, keyword_only, without_cuda

SOURCE, CONFIGURATIONS, BACKWARD = "func_forward.py", "config_forward.json", "func_backward.py"
Choices = list[dict[str, Any]]
Pair = tuple[dict[str, Any], dict[str, Any]]
"""Keywords of the constructor, and of `get_inputs`."""


class Configurations(BaseModel):
    """`config_forward.json`. Shared settings are laid over both others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    single_input_configs: Choices = [{}]
    single_init_configs: Choices = [{}]
    single_shared_configs: Choices = [{}]
    multi_input_configs: Choices = []
    multi_init_configs: Choices = []
    multi_shared_configs: Choices = []

    def pairs(self) -> list[Pair]:
        """Constructor and input settings of every configuration, the single ones first, each once."""
        single = _pairs(self.single_init_configs, self.single_input_configs, self.single_shared_configs)
        many = _pairs(
            self.multi_init_configs or self.single_init_configs,
            self.multi_input_configs or self.single_input_configs,
            self.multi_shared_configs or self.single_shared_configs,
        )
        found: list[Pair] = []
        for pair in [*single, *many]:
            if pair not in found:
                found.append(pair)
        return found


def _pairs(inits: Choices, inputs: Choices, shared: Choices) -> Iterator[Pair]:
    for init in inits or [{}]:
        for given in inputs or [{}]:
            for both in shared or [{}]:
                yield {**init, **both}, {**given, **both}


def read_task(folder: Path, name: str) -> Iterator[Entry]:
    """Yield an entry for each configuration of a task. Raises `ProblemError`."""
    configurations = read_configurations(folder / CONFIGURATIONS)
    source = read_text(folder / SOURCE)
    notes = [f"field {field!r} of {CONFIGURATIONS} is not known" for field in configurations.model_extra or ()]
    if (folder / BACKWARD).exists():
        notes.append(f"{BACKWARD} is not read: only the forward pass is asked for")
    for number, pair in enumerate(configurations.pairs()):
        origin = Origin(format="robust-kbench", id=f"{name}/{number}", title=name)
        yield entry_of(origin, partial(_entry, origin, source, pair, tuple(notes)))


def read_configurations(path: Path) -> Configurations:
    """Return the configurations of a task; those of one with no such file are its functions' own defaults."""
    if not path.exists():
        return Configurations()
    try:
        return Configurations.model_validate(read_json(read_text(path), str(path)))
    except ValidationError as error:
        where = first_fault(error).key
        raise ProblemError(f"{path}: {where} is not a list of objects; correct it") from None


def _entry(origin: Origin, source: str, pair: Pair, notes: tuple[str, ...]) -> Entry:
    init, given = pair
    where = origin.title
    tree = check_reference(source, where, without=("get_init_inputs",))
    by_keyword = keyword_only(tree)
    if wanted := [name for name, must in by_keyword.items() if must or name in init]:
        raise Unsupported(f"Model takes {', '.join(wanted)} by keyword only; drop the * from its parameters")
    text = configured(without_cuda(source), init, given)
    name = f"{where.replace('/', '-')}-{origin.id.rpartition('/')[2]}"
    return entry_with(origin, text, notes, name=name, title=title_of(tree) or where, family="robust-kbench")
