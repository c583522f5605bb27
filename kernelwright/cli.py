"""The command line. Each command is one function in `kernelwright.commands`; this file only lists them."""

import atexit
import os
import sys
from typing import NoReturn

import typer

from kernelwright.commands import batch, exchange, judge, models, problems, programs, results, run, score, serve
from kernelwright.terminal import before_any_command, with_exit_codes, with_options

app = typer.Typer(
    name="kernelwright",
    help="Language models write kernels for PyTorch problems; an honest judge decides which are right and how fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.callback()(before_any_command)
for name, command in (
    ("run", run.run),
    ("capture", programs.capture),
    ("split", programs.split),
    ("judge", judge.judge),
    ("extract", models.extract),
    ("prompt", models.prompt),
    ("resume", run.resume),
    ("replay", run.replay),
    ("doctor", serve.doctor),
    ("score", score.score),
    ("serve", serve.serve),
    ("mcp", serve.mcp),
    ("leaderboard", results.leaderboard),
    ("inspect", results.inspect),
    ("diff", results.diff),
    ("show", results.show),
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
        registered.callback = with_exit_codes(with_options(registered.callback))


def main() -> None:
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
