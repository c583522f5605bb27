"""The command line. Each command is one function in `kernelwright.commands`; this file only lists them."""

import atexit
import os
import sys
from typing import NoReturn

import typer

from kernelwright.commands import programs
from kernelwright.commands.judging import doctor, judge, problems, score, serve
from kernelwright.commands.options.terminal import version, with_exit_codes, with_verbosity
from kernelwright.commands.results import exchange, showing
from kernelwright.commands.search import batch, models, prompt, run

app = typer.Typer(
    name="kernelwright",
    help="Language models write kernels for PyTorch problems; an honest judge decides which are right and how fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.callback()(version)
for name, command in (
    ("run", run.run),
    ("capture", programs.capture),
    ("split", programs.split),
    ("judge", judge.judge),
    ("extract", prompt.extract),
    ("prompt", prompt.prompt),
    ("resume", run.resume),
    ("replay", run.replay),
    ("doctor", doctor.doctor),
    ("score", score.score),
    ("serve", serve.serve),
    ("mcp", serve.mcp),
    ("leaderboard", showing.leaderboard),
    ("inspect", showing.inspect),
    ("diff", showing.diff),
    ("show", showing.show),
    ("import", exchange.import_),
    ("export", exchange.export),
    ("compare", programs.compare),
):
    app.command(name)(command)
for name, group in (("problems", problems.app), ("batch", batch.app), ("models", models.app)):
    app.add_typer(group, name=name)
for group in (app, problems.app, batch.app, models.app):
    for registered in group.registered_commands:
        assert registered.callback is not None
        registered.callback = with_exit_codes(with_verbosity(registered.callback))


def main() -> None:
    try:
        app()
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> NoReturn:
    """End now: to take the interpreter apart takes half a second once torch is imported, and nobody waits for that."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # whoever read has gone
        code = code or 1
    os._exit(code)
