"""Readers of the live surface: what the installed code offers now, a table of sections and names for each subject.

Only this module knows where the code keeps what it offers. A move inside the packages is followed here.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import anyio
import typer
import typer.main
from pydantic import BaseModel

import kernelwright
from kernelwright import terminal
from kernelwright.cli import app as kernelwright_app
from kernelwright.commands.exchange import FORMATS as EXPORT_FORMATS

Surface = dict[str, dict[str, Any]]
ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"KERNELWRIGHT_[A-Z_]*[A-Z]")
PROGRAM = "kernelwright"
DEEPEST = 6
"""Levels of records within records that are followed."""
INTERNAL = {
    "Judge": {"build", "close", "evaluate", "reference", "start", "stop"},
    "JudgePool": {"close", "open"},
    "run[]": {"config", "earlier_s", "granted", "last_event", "measured", "next_number", "pending", "session_start"},
}
"""Members of public classes that no page tells of: free to change."""


def commands(app: typer.Typer = kernelwright_app) -> Surface:
    """Each command with the spellings of its options and the places of its arguments."""
    return {" ".join(path) or PROGRAM: _parameters(command) for path, command in walk(app)}


def walk(app: typer.Typer) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with the words that lead to it; the first is the program itself."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while todo:
        path, command = todo.pop(0)
        yield path, command
        todo += [((*path, name), one) for name, one in getattr(command, "commands", {}).items()]


def _parameters(command: Any) -> dict[str, str]:
    found: dict[str, str] = {"commands": "below"} if hasattr(command, "commands") else {}
    place = 0
    for one in command.params:
        if one.param_type_name == "argument":
            place += 1
            found[f"argument {place}"] = ("" if one.required else "optional ") + ("many" if one.nargs == -1 else "one")
            continue
        kind = "flag" if one.is_flag else "counted" if one.count else "values" if one.multiple else "value"
        if one.required:
            kind = f"required {kind}"
        found |= dict.fromkeys((*one.opts, *one.secondary_opts), kind)
    return found


def choices() -> Surface:
    """Words that an option takes, for options that take one of several."""
    from kernelwright.agent.config import Api, SearchConfig
    from kernelwright.agent.providers import providers
    from kernelwright.agent.strategies import SHIPPED
    from kernelwright.evals.runs import SUITES
    from kernelwright.problems.languages import TARGETS
    from kernelwright.problems.loading import DTYPES
    from kernelwright.prompts import SECTION_NAMES
    from kernelwright.sandbox.pool.judge_pool import NAMES
    from kernelwright.sandbox.verdict.settings import BaselineGroup, CompileMode, Defence, JudgeSettings, JudgingEffort

    words = {
        "--effort": get_args(JudgingEffort),
        "--jail": get_args(JudgeSettings.model_fields["jail"].annotation),
        "--compile": get_args(CompileMode),
        "--baselines": get_args(BaselineGroup),
        "--dtype": DTYPES,
        "--target": TARGETS,
        "--strategy": SHIPPED,
        "--provider": providers(),
        "--suite": SUITES,
        "--executor": NAMES,
        "--api": get_args(Api),
        "--without": SECTION_NAMES,
        "export --to": EXPORT_FORMATS,
        "judge defences": get_args(Defence),
    }
    return {option: dict.fromkeys(map(str, values), "choice") for option, values in words.items()} | {
        "--set": fields(SearchConfig)
    }


def errors() -> Surface:
    """The exit code of each class of errors, by the name of the class."""
    return {"errors": dict(terminal.CODES)}


def names() -> Surface:
    """Public names of the package, the fields of its records, and the parameters of its functions and methods."""
    found: Surface = {"names": {}}
    for name in kernelwright.__all__:
        thing = getattr(kernelwright, name)
        found["names"][name] = _kind(thing)
        if inspect.isclass(thing) and issubclass(thing, BaseModel):
            found[name] = fields(thing) | properties(thing)
        elif inspect.isclass(thing) and not issubclass(thing, Exception):
            found[name] = parameters(thing)
            for method, function in vars(thing).items():
                if inspect.isfunction(function) and not method.startswith("_") and method not in INTERNAL.get(name, ()):
                    found[f"{name}.{method}"] = parameters(function)
        elif inspect.isfunction(thing):
            found[name] = parameters(thing)
    view = get_args(inspect.signature(kernelwright.run).return_annotation)[0]
    members = {**inspect.signature(view).parameters, **properties(view)}
    found["run[]"] = {name: "member" for name in members if name not in INTERNAL["run[]"]}
    return {section: table for section, table in found.items() if table}


def _kind(thing: Any) -> str:
    if inspect.isclass(thing):
        return "record" if issubclass(thing, BaseModel) else "error" if issubclass(thing, Exception) else "class"
    return "function" if inspect.isfunction(thing) else "type"


def parameters(function: Any) -> dict[str, str]:
    """Parameters by name: the place, or `keyword`, and whether each must be given."""
    found = {}
    listed = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    for place, one in enumerate(listed, 1):
        if one.kind is one.VAR_KEYWORD:
            found["**"] = "any keyword"
        elif one.kind is not one.VAR_POSITIONAL:
            where = "keyword" if one.kind is one.KEYWORD_ONLY else str(place)
            found[one.name] = f"{where}, {'required' if one.default is one.empty else 'optional'}"
    return found


def fields(model: type[BaseModel], before: str = "", depth: int = DEEPEST) -> dict[str, str]:
    """Fields of a record and of the records in it, by path, with their fixed choices."""
    found = {}
    for name, field in model.model_fields.items():
        path = before + (field.serialization_alias or name)
        allowed = sorted({str(one) for one in _literals(field.annotation)})
        found[path] = ("required" if field.is_required() else "optional") + "".join(f" | {one}" for one in allowed)
        for listed, inner in _records(field.annotation):
            if depth:
                found |= fields(inner, f"{path}{'[]' if listed else ''}.", depth - 1)
                found |= properties(inner, f"{path}{'[]' if listed else ''}.")
    return found


def properties(kind: type, before: str = "") -> dict[str, str]:
    """Public properties of a class and of the classes of ours that it is derived from."""
    own = [vars(one) for one in kind.__mro__ if one.__module__.startswith("kernelwright")]
    return {
        before + name: "property"
        for table in reversed(own)
        for name, thing in table.items()
        if isinstance(thing, property | cached_property) and not name.startswith("_")
    }


def _literals(annotation: Any) -> Iterator[Any]:
    if getattr(annotation, "__name__", None) == "Literal" or str(annotation).startswith("typing.Literal"):
        yield from get_args(annotation)
        return
    for inner in get_args(annotation):
        yield from _literals(inner)


def _records(annotation: Any, listed: bool = False) -> Iterator[tuple[bool, type[BaseModel]]]:
    if inspect.isclass(annotation) and not get_args(annotation) and issubclass(annotation, BaseModel):
        yield listed, annotation
    for inner in get_args(annotation):
        yield from _records(inner, listed or getattr(annotation, "__origin__", None) in (list, tuple))


def surroundings() -> Surface:
    """Extras, console scripts, groups of plug-ins, and the environment variables that pages tell of."""
    from kernelwright.agent.providers import GROUP as PROVIDERS
    from kernelwright.agent.strategies import GROUP as STRATEGIES

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    told = {name for page in pages for name in VARIABLE.findall(page.read_text(encoding="utf-8"))}
    return {
        "extras": dict.fromkeys(project["optional-dependencies"], "extra"),
        "scripts": dict(project["scripts"]),
        "plug-ins": dict.fromkeys((PROVIDERS, STRATEGIES), "entry point group"),
        "environment": dict.fromkeys(sorted(told & set(variables())), "variable"),
    }


def variables() -> Iterator[str]:
    """Environment variables of ours that the sources of the package name."""
    for folder, inside, files in os.walk(Path(kernelwright.__file__).parent, followlinks=True):
        inside[:] = [one for one in inside if one != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                yield from VARIABLE.findall((Path(folder) / file).read_text(encoding="utf-8"))


def tools() -> Surface:
    """Tools of `kernelwright mcp` with their parameters."""
    from kernelwright.integrations.mcp_server import AgentTools, server_of

    found: Surface = {}
    for tool in anyio.run(server_of(AgentTools(ROOT)).list_tools):
        schema = tool.model_dump(by_alias=True)["inputSchema"]
        needed = schema.get("required", ())
        found[f"tool {tool.name}"] = {
            name: "required" if name in needed else "optional" for name in schema["properties"]
        } or {"no parameter": ""}
    return found


def service(folder: Path) -> Surface:
    """Routes, fields and metrics of the service, as a running one tells them over HTTP."""
    from tests.support.service import listening

    with listening(folder) as running:
        client = running.client()
        document = client.ask("GET", "/openapi.json").body
        figures = client.ask("GET", "/metrics").text
        answers = {path: client.ask("GET", path).body for path in ("/healthz", "/v1/problems", "/v1/service")}
        answers["/v1/problems/{name}"] = client.ask("GET", "/v1/problems/sum_rows").body
        refused = client.ask("GET", "/v1/jobs/none")
    found: Surface = {"routes": {}, "metrics": {}}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            route = f"{method.upper()} {path}"
            found["routes"][route] = " ".join(sorted(operation["responses"]))
            found[route] = {one["name"]: one["in"] for one in operation.get("parameters", ())}
    for name, schema in document["components"]["schemas"].items():
        needed = schema.get("required", ())
        found[f"schema {name}"] = {
            field: "required" if field in needed else "optional" for field in schema.get("properties", ())
        }
    for path, body in answers.items():
        found[f"GET {path} gives"] = dict.fromkeys(body, "key")
    found["a refusal gives"] = dict.fromkeys(refused.body, "key")
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", figures, re.MULTILINE):
        labels = sorted(set(re.findall(rf'^{name}\{{(\w+)="', figures, re.MULTILINE)))
        found["metrics"][name] = " ".join([kind, *labels])
    return {section: table for section, table in found.items() if table}


def refused_keyword(call: Any, keyword: str) -> bool:
    """Whether a function or record does not know a keyword. Required arguments are left out, so nothing happens."""
    try:
        call(**{keyword: object()})
    except TypeError as error:
        return "unexpected keyword" in str(error) and keyword in str(error)
    except ValueError as error:
        faults = getattr(error, "errors", list)()
        return any(one["type"] == "extra_forbidden" and keyword in one["loc"] for one in faults)
    return False
