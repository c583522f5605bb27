"""`kernelwright mcp`: the judge as tools of a coding agent."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.commands.options.judging_options import (
    DeviceOption,
    EffortOption,
    ServerOption,
    check_device,
    device_count,
    judging_effort,
)
from kernelwright.problems.texts.libraries import LibraryMissing


def mcp(
    folder: Annotated[Path, typer.Option(help="Files below it may be read, and no others.")] = Path(),
    run: Annotated[Path | None, typer.Option(help="A run whose best kernels are shown too.")] = None,
    device: DeviceOption = None,
    effort: EffortOption = "search",
    server: ServerOption = None,
) -> None:
    """Serve a coding agent over the Model Context Protocol, on standard input and output."""
    try:
        from kernelwright.integrations.mcp_server import server_of
    except ImportError as error:
        raise LibraryMissing.of_extra("this", error.name, "mcp") from None
    from kernelwright.integrations.agent_tools import AgentTools

    if not folder.is_dir():
        raise UserMistake(f"--folder {folder} is no folder; name the one that the agent works in")
    if run is not None and not (run / "header.json").is_file():
        raise UserMistake(f"--run {run} is no run; name a folder that `kernelwright run` has written")
    if device is not None:
        check_device(device, None if server else device_count())
    chosen = {"effort": judging_effort(effort)} | ({"device": device} if device else {})
    server_of(AgentTools(folder, run, server, **chosen)).run("stdio")
