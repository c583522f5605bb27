"""`kernelwright resume`: go on with a run that was stopped."""

from typing import Annotated

import typer

from kernelwright.commands.options.declared import RunArgument
from kernelwright.commands.options.running import go, set_up


def resume(
    folder: RunArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a problem at the end, nothing else.")
    ] = False,
) -> None:
    """Go on where a run was stopped. What is done is not done again; what could not be judged is tried again.

    Exit code 1 if a problem got no right kernel.
    """
    from kernelwright.evals.runs.running import Running

    with Running.resume(folder) as running:
        set_up()
        go(running, folder, as_json)
