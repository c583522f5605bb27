"""`kernelwright problems`: list, show and check."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options import DtypeOption
from kernelwright.endings import DONE, FELL_SHORT, UserMistake, reported

if TYPE_CHECKING:
    from problems import Problem

app = typer.Typer(
    help="The catalog, and checks of problems from anywhere.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
@reported
def list_problems(
    family: Annotated[str | None, typer.Option(help="Only problems of this family; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a problem, nothing else.")] = False,
) -> None:
    """List the problems that ship."""
    from problems import catalog_names, load_problem

    found = [load_problem(name) for name in catalog_names()]
    chosen = [problem for problem in found if family in (None, problem.family)]
    if not chosen:
        families = sorted({problem.family for problem in found})
        raise UserMistake(f"no family {family!r}; there are: {', '.join(families)}")
    width = max(len(problem.name) for problem in chosen)
    for problem in chosen:
        if as_json:
            print(json.dumps({"name": problem.name, "family": problem.family, "title": problem.title}))
        else:
            print(f"{problem.name:{width}}  {problem.family:14}  {problem.title}")


@app.command("show")
@reported
def show(
    problem: Annotated[str, typer.Argument(help="Catalog name, path of a .py file, or PATH::ID.")],
    size: Annotated[str | None, typer.Option(help="Size of a catalog problem: cpu or gpu; default: cpu.")] = None,
    dtype: DtypeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole record as one JSON object.")] = False,
) -> None:
    """Print a problem's reference with its sizes put in. Before it, policies and what PyTorch took for it here."""
    from problems import load_problem
    from sandbox.baseline_times import BaselineTimes, in_words

    found = load_problem(problem, size, dtype)
    times = BaselineTimes(found).known()
    if as_json:
        known = [time.model_dump(mode="json") for time in times]
        print(json.dumps(found.model_dump(mode="json") | {"digest": found.digest, "baselines": known}))
        return
    print(f"# {found.name} ({found.family}, size {found.size}): {found.title}")
    print(f"# precision {found.precision}, operators {found.operators}, direction {found.direction}")
    if found.dtype is not None:
        print(f"# dtype {found.dtype}: weights and floating inputs are cast to it once they are made")
    if found.values.without:
        reason = " ".join(found.values.reason.split())
        print(f"# not judged on values {', '.join(found.values.without)}: {reason}")
    print(f"# digest {found.digest}")
    for line in in_words(times):
        print(f"# baselines on {line}")
    print(f"\n{found.source}")


@app.command("check")
@reported
def check(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Catalog names, files, folders or PATH::ID; default: the catalog.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Size of catalog problems: cpu or gpu; default: cpu.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a problem, nothing else.")] = False,
) -> None:
    """Run each problem, and hold trivial answers against it. Exit code 1 unless all are ok."""
    from problems import ProblemError, catalog_names, load_problem
    from sandbox.errors import BrokenProblem, UnsupportedProblem
    from sandbox.own_process import become_a_judge
    from sandbox.settings import Settings

    wanted = paths or list(catalog_names())
    _require_named(wanted, size)
    become_a_judge()
    counts: dict[str, int] = {}
    collections, loose = _parted(wanted)
    for path in collections:
        for line in _check_collection(path, as_json):
            counts[line] = counts.get(line, 0) + 1
    for path in _each(loose):
        try:
            status, why = _checked(load_problem(path, size), Settings())
        except UnsupportedProblem as error:
            status, why = "unsupported", [str(error)]
        except (ProblemError, BrokenProblem) as error:
            status, why = "broken", [str(error)]
        counts[status] = counts.get(status, 0) + 1
        if as_json:
            print(json.dumps({"problem": path, "status": status, "why": why}), flush=True)
        else:
            print(f"{path}: {status}{''.join(f'; {reason}' for reason in why)}", flush=True)
    if not as_json:
        print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    raise typer.Exit(DONE if set(counts) <= {"ok"} else FELL_SHORT)


def _require_named(paths: Iterable[str], size: str | None) -> None:
    """`ProblemError` for what is not there, or not at that size: a mistake in the words, no status of a problem."""
    from problems import ProblemError, load_problem

    for path in paths:
        if not _is_there(path):
            load_problem(path, size)  # says what there is
        if size is None:
            continue
        try:
            load_problem(path)
        except ProblemError:
            continue
        load_problem(path, size)


def _is_there(path: str) -> bool:
    from problems import catalog_names
    from problems.formats import read_collection
    from problems.formats.collections import SEPARATOR

    place, separator, wanted = path.rpartition(SEPARATOR)
    if not separator:
        return path in catalog_names() or os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a long path
    entries = read_collection(Path(place)).entries
    return any(wanted in (entry.id, entry.problem and entry.problem.name) for entry in entries)


def _parted(paths: list[str]) -> tuple[list[str], list[str]]:
    """The collections of other benchmarks among the paths, and the rest."""
    from problems.formats import format_of

    def is_collection(path: str) -> bool:
        return not (Path(path) / "problem.toml").is_file() and format_of(Path(path)) is not None

    collections = [path for path in paths if is_collection(path)]
    return collections, [path for path in paths if path not in collections]


def _check_collection(path: str, as_json: bool) -> Iterator[str]:
    """One line a problem; the status of each. One at a time, since how long a call takes is a part of the check."""
    from evals.formats.checking import check_entries
    from problems.formats import read_collection
    from sandbox.settings import Settings

    for found in check_entries(read_collection(Path(path)).entries, _checked, Settings(), side_by_side=1):
        if as_json:
            print(json.dumps({"problem": found.id, "status": found.status, "why": list(found.why)}), flush=True)
        else:
            print(f"{found.id}: {found.status}{''.join(f'; {reason}' for reason in found.why)}", flush=True)
        yield found.status


def _each(paths: list[str]) -> list[str]:
    """Folders of loose problem files give their files; a catalog-like folder is one problem."""
    found: list[str] = []
    for path in paths:
        if Path(path).is_dir() and not (Path(path) / "problem.toml").exists():
            files = sorted(str(file) for file in Path(path).rglob("*.py"))
            if not files:
                raise UserMistake(f"folder {path} holds no .py file; name a folder of problem files")
            found += files
        else:
            found.append(path)
    return found


def _checked(problem: "Problem", settings: object) -> tuple[str, list[str]]:
    from problems.lint import lint_source
    from sandbox.compare import tolerance_of
    from sandbox.lint import examine, status_of
    from sandbox.reference import Form, ReferenceSession
    from sandbox.settings import Settings

    assert isinstance(settings, Settings)
    with ExitStack() as stack:
        reference, reweighted = (
            stack.enter_context(closing(ReferenceSession(problem, settings, Form(changed_weights=changed))))
            for changed in (False, True)
        )
        findings = examine(reference, tolerance_of(problem), settings.memory_bytes, reweighted)
    status = status_of(findings)
    return status.status, [*status.why, *lint_source(problem.source)]
