"""`kernelwright serve`, `mcp` and `doctor`: a warm judge for programs and coding agents, and what a machine lacks."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright import options
from kernelwright.problems.problem import LibraryMissing
from kernelwright.terminal import DONE, MACHINE_LACKS, UserMistake, json_option, note

if TYPE_CHECKING:
    from kernelwright.sandbox.service.store import DeviceKind


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
    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait; further ones are refused for now.")] = 1000,
    keep: Annotated[int, typer.Option(min=1, help="Jobs that have ended and can still be fetched.")] = 10_000,
    builders: options.BuildersOption = None,
    device: Annotated[
        str | None, typer.Option(help="Judge there alone: cpu or cuda; default: both, where there is a GPU.")
    ] = None,
    memory: options.MemoryOption = None,
    threads: options.ThreadsOption = None,
    executor: options.ExecutorOption = "local",
    address: options.AddressOption = None,
    devices: options.DevicesOption = None,
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
    where = options.DeviceOptions(executor, address, devices, kind).choice(builders)
    if executor == "local":
        options.check_threads(threads, None if "cuda" in places else devices)
    asked = options.JudgingOptions(memory=memory, threads=threads, jail=jail)
    listen(
        ServiceOptions(
            socket=socket,
            host=host,
            port=port,
            token=read_token(token_file),
            state=state or usual_state(),
            queue=queue,
            keep=keep,
            settings={name: asked.settings(name) for name in places},
            where=where,
        )
    )


def _places(device: str | None, executor: str) -> "tuple[DeviceKind, ...]":
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
    """Read the token of a file that nobody else can read, or of the environment; None where there is neither."""
    from kernelwright.sandbox.pool.client import TOKEN
    from kernelwright.sandbox.service.server import SHORTEST_TOKEN

    where, token = TOKEN, os.environ.get(TOKEN)
    if path is not None:
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UserMistake(f"others can read the token in {path}; chmod 600 {path}")
            where, token = str(path), path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserMistake(f"the token file {path} cannot be read ({error.strerror}); check the path") from None
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
        from kernelwright.integrations.mcp_server import AgentTools, server_of
    except ImportError as error:
        raise LibraryMissing.of_extra("this", error.name, "mcp") from None

    if not folder.is_dir():
        raise UserMistake(f"--folder {folder} is no folder; name the one that the agent works in")
    if run is not None and not (run / "header.json").is_file():
        raise UserMistake(f"--run {run} is no run; name a folder that `kernelwright run` has written")
    if device is not None:
        options.check_device(device, None if server else options.device_count())
    chosen = {"effort": options.judging_effort(effort)} | ({"device": device} if device else {})
    server_of(AgentTools(folder, run, server, **chosen)).run("stdio")


def doctor(
    as_json: Annotated[bool, json_option("One JSON list of findings, nothing else.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make torch's light header now: under a minute, 4 MB.")
    ] = False,
) -> None:
    """Look at the machine. Exit code 3 if candidates cannot be judged on it at all."""
    from kernelwright.sandbox.judge.doctor import examine
    from kernelwright.sandbox.toolchain import prepare_headers, toolchain

    if prepare:
        tools = toolchain()
        if tools is None:
            note("no C++ compiler is found, so there is nothing to prepare")
            raise typer.Exit(MACHINE_LACKS)
        done = prepare_headers(tools)
        print(f"the light torch/extension.h: {'ready' if done else 'could not be made'}", file=sys.stderr, flush=True)
    findings = examine()
    if as_json:
        print(json.dumps([finding.model_dump() for finding in findings]))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "absent": "absent ", "missing": "MISSING"}[finding.state]
            print(f"{mark} {finding.name}: {finding.found}{'; ' + finding.remedy if finding.remedy else ''}")
    raise typer.Exit(MACHINE_LACKS if any(finding.state == "missing" for finding in findings) else DONE)
