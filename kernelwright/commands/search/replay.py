"""`kernelwright replay`: do a recorded run again without network and judge, and compare."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.options.shared_options import RunArgument


def replay(
    folder: RunArgument,
    out: Annotated[Path | None, typer.Option(help="New folder for the replayed run; default: none is kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with events and digest.")] = False,
) -> None:
    """Make a run's decisions again from its record. It asks and judges nothing. Exit code 1 where one differs."""
    from kernelwright.agent.engine.replaying import replay as replay_run
    from kernelwright.agent.log.run_log import RunLog

    with RunLog.open(folder) as log, tempfile.TemporaryDirectory() as scratch:
        found = replay_run(log, out or Path(scratch) / log.header.run_id)
    if as_json:
        print(json.dumps({"run": str(folder), "same": True, **found.model_dump()}))
        return
    print(f"{folder}: {found.events} events came out the same; digest {found.digest}")
