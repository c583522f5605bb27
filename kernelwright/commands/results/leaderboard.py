"""`kernelwright leaderboard`: who found how fast kernels, from the records of runs alone."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.commands.options.judging_options import judging_effort
from kernelwright.commands.options.terminal import table_console

if TYPE_CHECKING:
    from kernelwright.evals.boards.leaderboard import Board
    from kernelwright.evals.runs.facts import RunFacts
    from kernelwright.sandbox.verdict.settings import JudgingEffort


def leaderboard(
    folders: Annotated[list[Path], typer.Argument(help="Runs, or folders that hold runs.")],
    verify: Annotated[int, typer.Option(min=0, help="Judge the kernels of the N best rows again.")] = 0,
    effort: Annotated[
        str, typer.Option(help="The least effort of verdicts that count: screen, search or rank.")
    ] = "rank",
    metric: Annotated[
        list[str] | None, typer.Option(help="A column of your own, file.py:function; may be repeated.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="md, csv, json or html; default: by the ending of --out, else a table."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Rank models and strategies, a board for each device. What counts are the lower bounds of the best speedups."""
    from kernelwright.evals.boards.leaderboard import load_metrics, with_metrics
    from kernelwright.evals.boards.tables import FORMATS
    from kernelwright.evals.runs.facts import all_facts

    if as_json and form not in (None, "json"):
        raise UserMistake(f"--json and --format {form} are two formats; leave one of them out")
    chosen = "json" if as_json else form or (out.suffix.lstrip(".") if out else None)
    if chosen is not None and chosen not in FORMATS:
        raise UserMistake(f"no format {chosen!r}; there are: {', '.join(FORMATS)}")
    own = load_metrics(metric or ())
    found = with_metrics(_boards(list(all_facts(folders, _left_out)), verify, judging_effort(effort)), own)
    if chosen is None:
        _show(found)
    elif out is None:
        print(FORMATS[chosen](found))
    else:
        try:
            out.write_text(FORMATS[chosen](found), encoding="utf-8")
        except OSError as error:
            raise UserMistake(f"cannot write {out} ({error.strerror}); choose another file") from error


def _left_out(error: Exception) -> None:
    print(f"kernelwright: left out: {error}", file=sys.stderr)


def _boards(runs: "list[RunFacts]", verify: int, effort: "JudgingEffort") -> "list[Board]":
    from kernelwright.agent.briefs import sheet_for
    from kernelwright.evals.boards.leaderboard import boards
    from kernelwright.evals.boards.verifying import Verifier
    from kernelwright.sandbox.jail.own_process import become_a_judge
    from kernelwright.sandbox.machine.identity import ON_DEVICE
    from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

    if verify:
        become_a_judge()
    gpu = {run.target for run in runs} & set(ON_DEVICE) if verify else set()
    here = sheet_for("cuda" if gpu else "cpp").name if verify else ""
    if verify and here not in {run.device for run in runs}:
        devices = ", ".join(sorted({run.device for run in runs}))
        raise UserMistake(f"this machine is {here!r} and the runs were made on {devices}; verify them there")
    verifier = Verifier(here, lambda cell, again: typer.echo(f"judged again: {cell.problem}", err=True), effort)
    return verifier.verify_top(runs, verify) if verify else boards(runs, str(JUDGE_VERSION), verifier.lookup, effort)


def _show(found: "list[Board]") -> None:
    from kernelwright.evals.boards.tables import board_tables, unranked

    console = table_console()
    for board in found:
        for table in board_tables(board, console.width):
            console.print(table)
        if board.weak:
            print(unranked(board))
    stale = sum(row.stale for board in found for row in board.rows)
    if stale:
        print(f"{stale} numbers were reached under another judge version; --verify judges those of the best rows again")
