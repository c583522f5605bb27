"""What `run` and `resume` share: progress while it goes on, a table at the end, and a word on how to go on."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernelwright.commands.options.exit_codes import FELL_SHORT, INTERRUPTED, exit_with, own_command
from kernelwright.commands.options.terminal import table_console

if TYPE_CHECKING:
    from kernelwright.agent.log.view import View
    from kernelwright.evals.runs.running import Running
    from kernelwright.problems import Problem


def prepare_process() -> None:
    """Make this process what a run needs. Call it before one is started: that imports torch, for its version.

    Workers judge, in processes of their own; the keys to models are here.
    """
    from kernelwright.sandbox.jail.own_process import protect_this_process, rest_between_loops

    rest_between_loops()
    protect_this_process()


def search_and_report(running: "Running", folder: Path, as_json: bool) -> None:
    """Search all problems of the run and print what came of it. Exit code 1 if a problem got no right kernel.

    A problem that could not be judged is one of those, and so is an entry of a suite that could not be read.
    """
    from rich.console import Console
    from rich.text import Text

    from kernelwright.evals.report import Progress, ending_words

    console = Console(stderr=as_json)
    names = tuple(problem.name for problem in running.problems)
    plan = running.plan.search
    count = "1 problem" if len(names) == 1 else f"{len(names)} problems"
    intro = f"run {folder}: {count}, target {plan.target}, on {_place(running)}, answers from {plan.model}"
    console.print(intro, highlight=False, soft_wrap=True)
    left_out = running.left_out()
    for view in left_out:
        console.print(Text(f"{view.problem}: {ending_words(view)}"), soft_wrap=True)
    try:
        with Progress(names, console) as progress:
            for name in names:
                progress.take_over(name, list(running.log.events(name)))
            views = asyncio.run(running.search_all(progress.event)) + left_out
    except KeyboardInterrupt:
        exit_with(INTERRUPTED, f"stopped; what is done is kept, go on with: {own_command()} resume {folder}")
    except Exception:
        print(
            f"kernelwright: what is done is kept in {folder}; go on with: {own_command()} resume {folder}",
            file=sys.stderr,
        )
        raise
    _tell(running, views, folder, as_json)
    raise typer.Exit(0 if all(view.best for view in views) else FELL_SHORT)


def _place(running: "Running") -> str:
    """Where it is judged, as the header has it, and the dtype that the problems were cast to."""
    dtypes = sorted({problem.dtype for problem in running.problems if problem.dtype})
    return ", ".join([running.plan.judging.device, running.log.header.device, *dtypes])


def _tell(running: "Running", views: "list[View]", folder: Path, as_json: bool) -> None:
    from kernelwright.agent.log.best import PROBLEM, device_option
    from kernelwright.evals.report import summary_rows, summary_table

    if as_json:
        for row in summary_rows(views, folder):
            print(json.dumps(row))
        return
    table_console().print(summary_table(views))
    kept, found = next(((view.problem, view.best) for view in views if view.best), (None, None))
    if kept and found:
        best = folder / "best" / kept
        rules, again = best / PROBLEM, device_option(found.ruling)
        named = kept if _is_as_shipped(running.log.problem(kept)) else rules
        print(f"\nEach kept kernel lies in {folder / 'best' / 'PROBLEM'} with its problem, verdict and how to use it.")
        print("Next:")
        print(f"  {own_command()} judge {rules} {best / 'candidate.py'}{again}   # judge one again")
        print(f"  {own_command()} prompt {named}   # what a model is asked")
        print(f"  {own_command()} run {named} --model MODEL   # ask your own model; the key in OPENAI_API_KEY")


def _is_as_shipped(problem: "Problem") -> bool:
    """Whether the problem's name stands for it: one of the catalog as it is, not cast to a dtype."""
    from kernelwright.problems import ProblemError, catalog_names, load_problem

    try:
        return problem.name in catalog_names() and problem == load_problem(problem.name, problem.size)
    except ProblemError:  # a file of that name, whose size is its own
        return False
