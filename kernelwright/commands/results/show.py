"""`kernelwright show`: a run in the terminal, or one text out of it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.exit_codes import FELL_SHORT, UserMistake
from kernelwright.commands.options.terminal import fit_for, table_console

if TYPE_CHECKING:
    from kernelwright.agent.log.run_log import RunLog
    from kernelwright.evals.inspector.model import ProblemText, RunModel


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    what: Annotated[
        str | None,
        typer.Argument(
            help="PROBLEM/3 for the source of attempt 3, PROBLEM/reference or PROBLEM/manifest for the problem's texts."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The index, or the whole attempt, as one JSON object.")
    ] = False,
) -> None:
    """Print a run as a tree of its attempts. Or the source of one of them, named behind the run."""
    from kernelwright.agent.log.run_log import RunLog
    from kernelwright.evals.inspector.model import RunModel, find_attempt

    with RunLog.open(run) as log:
        found = None if what is None else find_attempt(what)
        if what is not None and found is None:
            raise UserMistake(
                f"{what!r} names no attempt; give PROBLEM/NUMBER, such as {next(iter(log.header.problems))}/1"
            )
        attempt = found[1] if found is not None and isinstance(found[1], int) else None
        if found is not None and (attempt is None or not as_json):
            _print_source(log, *found, as_json)
            return
        model = RunModel(log)
        if as_json:
            print(json.dumps(model.detail(found[0], attempt or 0) if found else model.index()))
        else:
            _print_tree(model)


def _print_source(log: "RunLog", problem: str, what: "int | ProblemText", as_json: bool) -> None:
    from kernelwright.evals.inspector.model import source_of

    source = source_of(log, problem, what)
    if source is None:
        typer.echo(f"kernelwright: the reply of attempt {what} held no candidate", err=True)
        raise typer.Exit(FELL_SHORT)
    if as_json:
        print(json.dumps({"problem": problem, "source": source}))
    else:
        print(fit_for(sys.stdout, source), end="")


def _print_tree(model: "RunModel") -> None:
    from kernelwright.evals.report import run_tree

    header = model.log.header
    table_console(highlight=False).print(run_tree(f"{header.run_id} on {header.device}", model.views))
