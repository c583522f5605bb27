"""What stands before any command: `kernelwright --version`, which a report of a bug has to name, and `-v`."""

from typing import Annotated

import typer

from kernelwright.commands.options.verbosity import VerboseOption, tell_logs_for


def _tell(asked: bool) -> None:
    if not asked:
        return
    from kernelwright.evals.runs.version import version_words

    print(version_words())
    raise typer.Exit


def version(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell, is_eager=True, help="Print version and commit, and end.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    """What stands before any command."""
    tell_logs_for(verbose)
