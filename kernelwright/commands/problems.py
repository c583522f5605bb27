"""`kernelwright problems`: list and show; check runs up to hundreds and holds trivial answers against them."""

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kernelwright import options
from kernelwright.terminal import DONE, FELL_SHORT, INTERRUPTED, UserMistake, exit_with, json_option

if TYPE_CHECKING:
    from kernelwright.evals.checking import Checked
    from kernelwright.problems.formats import Entry
    from kernelwright.sandbox.verdict.settings import JudgeSettings

OF_KILLED = (
    "the process that checked it was killed, as where memory runs out; use a machine with more, or a smaller size"
)


class Wanted(NamedTuple):
    entry: "Entry"
    settings: "JudgeSettings"


app = typer.Typer(
    help="The catalog, and checks of problems from anywhere.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("check")
def check(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Catalog names, files, folders or PATH::ID; default: the catalog.")
    ] = None,
    size: options.SizeOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = None,
    memory: options.MemoryOption = None,
    threads: options.ThreadsOption = None,
    accuracy: options.AccuracyOption = "ieee",
    jail: options.JailOption = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="File of JSON lines to append to; problems that it has for the same device are skipped."),
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object a problem, nothing else.")] = False,
) -> None:
    """Run each problem, and hold trivial answers against it. Exit code 1 unless all are ok."""
    from kernelwright.problems import catalog_names
    from kernelwright.problems.loading import dtype_named

    if device is not None:
        options.check_device(device, options.device_count())
    if dtype is not None:
        dtype = dtype_named(dtype)
    options.check_threads(threads)
    named = paths or list(catalog_names())
    _require_named(named, size)
    asked = options.JudgingOptions(memory=memory, threads=threads, jail=jail, accuracy=accuracy)
    where = {one: asked.settings(one) for one in (device or "cuda", "cpu")}
    wanted = [
        Wanted(entry, where[options.device_for(device, "python", entry.problem.size if entry.problem else "cpu")])
        for entry in _entries(named, size, device, dtype)
    ]
    with closing(Checks(threads, separate=len(wanted) > 1)) as checks:
        lines = _checked(wanted, checks, out, as_json)
    raise typer.Exit(DONE if {line.status for line in lines} <= {"ok"} else FELL_SHORT)


class Checks:
    """Checks problems: one alone in this process, several in another. If that is killed, one problem has failed.

    The other process is asked over a pipe, without threads and their locks: Ctrl-C may come at any time.
    """

    def __init__(self, threads: int | None, separate: bool) -> None:
        from kernelwright.sandbox.jail.zygote import prepare_judge

        self._separate = multiprocessing.get_context("spawn") if separate else None
        self._threads = threads
        self._process: BaseProcess | None = None
        if not separate:
            prepare_judge(threads, separate)

    def line(self, wanted: Wanted) -> "Checked":
        """Check one problem. Raises `MachineError`."""
        from kernelwright.evals.checking import begun, check_entry, examine_problem

        entry, settings = wanted
        if self._separate is None or entry.problem is None:
            return check_entry(examine_problem, settings, entry)
        if self._process is None:
            self._pipe, theirs = self._separate.Pipe()
            self._process = self._separate.Process(target=_check_asked, args=(theirs, self._threads))
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((settings, entry))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            killed = {"status": "failed", "why": (OF_KILLED,), "kinds": ("killed",)}
            return begun(entry, settings).model_copy(update=killed)
        if isinstance(answer, BaseException):
            raise answer
        found: Checked = answer
        return found

    def close(self) -> None:
        """End the other process, and what it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _check_asked(pipe: Connection, threads: int | None) -> None:
    """Check what comes over the pipe, until it is closed."""
    from kernelwright.evals.checking import check_entry, examine_problem
    from kernelwright.sandbox.jail.zygote import prepare_judge

    with suppress(EOFError, OSError, KeyboardInterrupt):
        prepare_judge(threads, True)
        while True:
            settings, entry = pipe.recv()
            try:
                answer: object = check_entry(examine_problem, settings, entry)
            except Exception as error:  # it is raised where it was asked for
                answer = error
            pipe.send(answer)


def _checked(wanted: Sequence[Wanted], checks: Checks, out: Path | None, as_json: bool) -> "list[Checked]":
    """Check all, one at a time, since the time of a call is a part of the check; print each line and a summary."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from kernelwright.evals.checking import CheckedFile, begun, summary

    console = Console(stderr=as_json)
    columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    shown = console.is_terminal  # elsewhere the lines alone show how far it is
    bar = Progress(*columns, console=console, transient=True, disable=not shown, redirect_stdout=False)
    lines: list[Checked] = []
    with CheckedFile(out) as file, bar as progress:
        kept = [None if entry.problem is None else file.known(begun(entry, settings)) for entry, settings in wanted]
        if len(wanted) > 1:  # one alone says it by its line
            dtypes = {one.settings.device: one.entry.problem.dtype for one in wanted if one.entry.problem}
            where = "; ".join(options.device_words(place, dtype) for place, dtype in sorted(dtypes.items()))
            known = sum(line is not None for line in kept)
            there = f"; {known} are in {out} already" if known else ""
            console.print(f"checking {len(wanted)} problems on {where}{there}", highlight=False, soft_wrap=True)
        task = progress.add_task("", total=len(wanted))
        try:
            for one, earlier in zip(wanted, kept, strict=True):
                line = earlier or checks.line(one)
                file.add(line)
                lines.append(line)
                if as_json:
                    print(line.model_dump_json(), flush=True)
                elif earlier is None:
                    console.print(Text(line.words), soft_wrap=True)
                progress.update(task, advance=1, description=line.problem)
        except KeyboardInterrupt:
            progress.stop()
            again = "with --out FILE.jsonl the same command could go" if out is None else "the same command goes"
            exit_with(INTERRUPTED, f"stopped after {len(lines)} of {len(wanted)}; {again} on from {out or 'there'}")
    console.print(Text(summary(lines)), soft_wrap=True)
    return lines


def _entries(paths: Sequence[str], size: str | None, device: str | None, dtype: str | None) -> "Iterator[Entry]":
    from kernelwright.problems import ProblemError, load_problem
    from kernelwright.problems.formats import Entry, format_of, read_collection
    from kernelwright.problems.loading import cast

    is_one = {path: (Path(path) / "problem.toml").is_file() or format_of(Path(path)) is None for path in paths}
    for path in (path for path in paths if not is_one[path]):
        for entry in read_collection(Path(path)).entries:
            yield entry if entry.problem is None else entry.model_copy(update={"problem": cast(entry.problem, dtype)})
    for path in _each([path for path in paths if is_one[path]]):
        try:
            yield Entry(id=path, problem=load_problem(path, options.size_for(path, size, device or "cpu"), dtype))
        except ProblemError as error:
            yield Entry(id=path, status="broken", why=str(error))


def _require_named(paths: Iterable[str], size: str | None) -> None:
    """Raise `ProblemError` for a problem that is not there, or not at that size: the user's mistake, not a status."""
    from kernelwright.problems import ProblemError, load_problem

    for path in paths:
        if not _is_there(path):
            load_problem(path, size)  # raises, and says which there are
        if size is None:
            continue
        try:
            load_problem(path)
        except ProblemError:
            continue
        load_problem(path, size)


def _is_there(path: str) -> bool:
    from kernelwright.problems import catalog_names
    from kernelwright.problems.formats import SEPARATOR, read_collection

    place, separator, wanted = path.rpartition(SEPARATOR)
    if not separator:
        return path in catalog_names() or os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a long path
    entries = read_collection(Path(place)).entries
    return any(wanted in (entry.id, entry.problem and entry.problem.name) for entry in entries)


def _each(paths: list[str]) -> list[str]:
    """Replace folders of problems, such as a capture's, by their problems; a catalog-like folder is one problem."""
    from kernelwright.evals.score import problem_paths

    found: list[str] = []
    for path in paths:
        if Path(path).is_dir() and not (Path(path) / "problem.toml").exists():
            files = [str(file) for file in problem_paths(Path(path))]
            if not files:
                raise UserMistake(f"folder {path} holds no .py file; name a folder of problem files")
            found += files
        else:
            found.append(path)
    return found


@app.command("list")
def list_problems(
    family: Annotated[str | None, typer.Option(help="Only problems of this family; default: all.")] = None,
    as_json: Annotated[bool, json_option("One JSON object a problem, nothing else.")] = False,
) -> None:
    """List the problems that ship."""
    from kernelwright.problems import catalog_names, load_problem

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
def show(
    problem: options.ProblemArgument,
    size: options.SizeOption = None,
    dtype: options.DtypeOption = None,
    as_json: Annotated[bool, json_option("The whole record as one JSON object.")] = False,
) -> None:
    """Print a problem's reference with its sizes put in. Before it, policies and what PyTorch took for it here."""
    from kernelwright.problems import load_problem
    from kernelwright.sandbox.timing.baseline_facts import BaselineTimes, in_words

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
