"""`kernelwright --version`: what a report of a bug has to name."""

from typing import Annotated

import typer


def _tell(asked: bool) -> None:
    if not asked:
        return
    from kernelwright.evals.runs.origin import commit, own_version

    found = commit()
    print(f"kernelwright {own_version()}" + (f", commit {found}" if found else ""))
    raise typer.Exit


def version(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell, is_eager=True, help="Print version and commit, and end.")
    ] = False,
) -> None:
    """What stands before any command."""
