"""`kernelwright diff`: two runs compared problem by problem, or two candidates line by line."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.commands.options.files import read_text

if TYPE_CHECKING:
    from kernelwright.evals.boards.comparing import RunComparison


def diff(
    first: Annotated[str, typer.Argument(help="A run, RUN:PROBLEM/NUMBER, or a file.")],
    second: Annotated[str, typer.Argument(help="The same kind of thing.")],
    as_json: Annotated[bool, typer.Option("--json", help="For runs: the comparison as one JSON object.")] = False,
) -> None:
    """Compare two runs: paired speedup ratios and a sign test. Or two candidates: the lines that differ."""
    runs = [(Path(name) / "header.json").is_file() for name in (first, second)]
    if all(runs):
        _compare(Path(first), Path(second), as_json)
    elif any(runs):
        other = second if runs[0] else first
        raise UserMistake(f"{other} is not the folder of a run and the other one is; give two runs, or two candidates")
    elif as_json:
        raise UserMistake("--json is for two runs; leave it out to see the lines of two candidates")
    else:
        before, after = _source(first), _source(second)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), first, second, lineterm="")
        print("\n".join(lines))


def _source(name: str) -> str:
    """The text of `RUN:PROBLEM/NUMBER` or of a file."""
    from kernelwright.agent.log.run_log import RunLog
    from kernelwright.evals.inspector.model import find_attempt, source_of

    folder, colon, what = name.rpartition(":")
    found = find_attempt(what) if colon else None
    if found is None:
        return read_text(name, "file or run")
    with RunLog.open(Path(folder)) as log:
        source = source_of(log, *found)
    if source is None:
        raise UserMistake(f"{name} has no candidate, since its reply held none; choose another attempt")
    return source


def _compare(first: Path, second: Path, as_json: bool) -> None:
    from kernelwright.evals.boards.comparing import compare_runs
    from kernelwright.evals.runs.facts import run_facts

    ours, theirs = run_facts(first), run_facts(second)
    try:
        found = compare_runs(ours, theirs)
    except ValueError as error:
        raise UserMistake(str(error)) from None
    if as_json:
        print(found.model_dump_json())
        return
    if ours.device != theirs.device:
        print(f"Two devices, {ours.device} and {theirs.device}: each speedup is against a baseline on its own one.")
    _print(found)


def _print(found: "RunComparison") -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table("problem", found.first, found.second, "ratio", "better", box=SIMPLE)
    for pair in found.pairs:
        shown = [f"{value:.2f} x" if value else "-" for value in (pair.first, pair.second, pair.ratio)]
        winner = {"first": found.first, "second": found.second, "same": "neither"}[pair.winner]
        table.add_row(pair.problem, *shown, winner)
    Console().print(table)
    mean = found.ratio
    if mean:
        interval = f" [{mean.low:.2f}, {mean.high:.2f}]" if mean.low and mean.high else ""
        print(f"Where both found a right kernel, {found.second} is {mean.value:.2f} x as fast{interval}.")
    clocks = [one.problem for one in found.pairs if None not in one.timing_clocks and len({*one.timing_clocks}) > 1]
    if clocks:
        print(f"Timed by two clocks, not compared: {', '.join(clocks)}. Judge the older run again to compare them.")
    print(f"{found.second} is better on {found.wins}, worse on {found.losses}; sign test p = {found.p_value:.3g}.")
    for name, only in ((found.first, found.only_first), (found.second, found.only_second)):
        if only:
            print(f"Only in {name}, not counted: {', '.join(only)}")
