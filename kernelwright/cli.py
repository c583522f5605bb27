"""The command line. Each command is one function in `kernelwright.commands`; this file only lists them."""

import atexit
import os
import sys
from typing import Any, NoReturn

import typer

from kernelwright.commands import batch, exchange, judge, models, problems, programs, results, run, score, serve
from kernelwright.terminal import PanelCommand, PanelGroup, before_any_command, with_exit_codes, with_options

COMMANDS: dict[str, dict[str, Any]] = {
    "Search": {"run": run.run, "resume": run.resume, "replay": run.replay, "batch": batch.app},
    "Programs": {"capture": programs.capture, "split": programs.split, "compare": programs.compare},
    "Judge": {"judge": judge.judge, "score": score.score, "serve": serve.serve, "mcp": serve.mcp},
    "Results": {
        "leaderboard": results.leaderboard,
        "inspect": results.inspect,
        "show": results.show,
        "diff": results.diff,
        "import": exchange.import_,
        "export": exchange.export,
    },
    "Problems, models and this machine": {
        "problems": problems.app,
        "models": models.app,
        "prompt": models.prompt,
        "extract": models.extract,
        "doctor": serve.doctor,
    },
}
"""By panel of the help and name."""
app = typer.Typer(
    cls=PanelGroup,
    name="kernelwright",
    help="Language models write kernels for PyTorch problems; an honest judge decides which are right and how fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.callback()(before_any_command)
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)
for group in (app, problems.app, batch.app, models.app):
    for registered in group.registered_commands:
        assert registered.callback is not None
        registered.callback = with_exit_codes(with_options(registered.callback))
        registered.cls = PanelCommand


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the program that started this one
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        app()
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> NoReturn:
    """End at once: the interpreter's own end takes half a second once torch is imported."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has gone
        code = code or 1
    os._exit(code)
