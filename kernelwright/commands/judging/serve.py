"""`kernelwright serve` and `mcp`: a judge that stays warm, over HTTP or as tools of a coding agent."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options import judging_options as options
from kernelwright.commands.options.terminal import UserMistake
from kernelwright.problems.texts.rewriting import LibraryMissing

if TYPE_CHECKING:
    from kernelwright.sandbox.service.store import PlaceName


def serve(
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket, for this user alone; default: one in the user's runtime folder.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen on this port instead; 0: any free one.")
    ] = None,
    host: Annotated[str, typer.Option(help="With --port: the address; beyond this machine only with a token.")] = (
        "127.0.0.1"
    ),
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients show; default: KERNELWRIGHT_TOKEN, or none.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the jobs; default: one in the user's state folder.")
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait; more are told to come again.")] = 1000,
    keep: Annotated[int, typer.Option(min=1, help="Jobs that have ended and can still be fetched.")] = 10_000,
    builders: Annotated[int | None, typer.Option(min=1, help="Builds side by side; default: one a core.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Judge there alone: cpu or cuda; default: both, where there is a GPU.")
    ] = None,
    memory: options.MemoryOption = None,
    threads: options.ThreadsOption = None,
    executor: options.ExecutorOption = "local",
    address: options.AddressOption = None,
    devices: Annotated[int | None, options.devices_option("all GPUs, and the processor as 1 part")] = None,
    kind: options.KindOption = None,
    jail: options.JailOption = "auto",
) -> None:
    """Judge candidates for programs that ask over HTTP, on a Unix socket or a port of this machine.

    What was accepted is judged, also after a crash and a new start. SIGTERM ends it after what is being judged.
    """
    try:
        from kernelwright.sandbox.service.server import ServiceOptions
        from kernelwright.sandbox.service.server import serve as listen
        from kernelwright.sandbox.service.store import usual_state
    except ImportError as error:
        raise LibraryMissing.of_extra("the service", error.name, "serve") from None

    if port is not None and socket is not None:
        raise UserMistake(f"a service listens at one place; leave out --socket {socket} or --port {port}")
    if port is None and host != "127.0.0.1":
        raise UserMistake(f"--host {host} needs a --port")
    places = _places(device, executor)
    where = options.executor_choice(executor, address, devices, kind, builders)
    if executor == "local":
        options.check_threads(threads, None if "cuda" in places else devices)
    settings = {name: options.JudgingOptions(name, memory, threads, None, jail).settings() for name in places}
    listen(
        ServiceOptions(
            socket=socket,
            host=host,
            port=port,
            token=read_token(token_file),
            state=state or usual_state(),
            queue=queue,
            keep=keep,
            settings=settings,
            where=where,
        )
    )


def _places(device: str | None, executor: str) -> "tuple[PlaceName, ...]":
    if device not in (None, "cpu", "cuda"):
        raise UserMistake(f"--device is {device!r}; give cpu or cuda")
    if executor != "local" and device is None:
        raise UserMistake(f"--executor {executor} needs to be told where its devices are; add --device cpu or cuda")
    if executor == "local" and device is not None:
        options.check_device(device, options.device_count())
    if device is not None:
        return ("cpu",) if device == "cpu" else ("cuda",)
    return ("cpu", "cuda") if options.device_count() else ("cpu",)


def read_token(path: Path | None) -> str | None:
    """The token of a file that nobody else can read, or of the environment; None where there is neither."""
    from kernelwright.sandbox.pool.client import TOKEN
    from kernelwright.sandbox.service.server import SHORTEST_TOKEN

    where, token = TOKEN, os.environ.get(TOKEN)
    if path is not None:
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UserMistake(f"others can read the token in {path}; chmod 600 {path}")
            where, token = str(path), path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserMistake(f"the token file {path} can not be read ({error.strerror}); check the path") from None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UserMistake(
            f"the token of {where} is shorter than {SHORTEST_TOKEN} letters; make one: openssl rand -hex 32"
        )
    return token


def mcp(
    folder: Annotated[Path, typer.Option(help="Files below it may be read, and no others.")] = Path(),
    run: Annotated[Path | None, typer.Option(help="A run whose best kernels are shown too.")] = None,
    device: options.DeviceOption = None,
    effort: options.EffortOption = "search",
    server: options.ServerOption = None,
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
        options.check_device(device, None if server else options.device_count())
    chosen = {"effort": options.judging_effort(effort)} | ({"device": device} if device else {})
    server_of(AgentTools(folder, run, server, **chosen)).run("stdio")
