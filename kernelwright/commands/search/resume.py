"""`kernelwright resume`: go on with a run that was stopped."""

from typing import Annotated

import typer

from kernelwright.commands.options.run_progress import prepare_process, search_and_report
from kernelwright.commands.options.shared_options import RunArgument


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
        prepare_process()
        search_and_report(running, folder, as_json)
