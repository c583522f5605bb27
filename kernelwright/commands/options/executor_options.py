"""Options about where judging runs, which several commands share, checked."""

import os
from typing import TYPE_CHECKING

from kernelwright.commands.options.exit_codes import UserMistake

if TYPE_CHECKING:
    from kernelwright.sandbox.pool import ExecutorChoice


def check_tools(sanitize: bool, profile: bool, gpu: bool, local: bool = True) -> None:
    """Whether the tools that are asked for make sense and are there, before anything is judged.

    `UserMistake` where nothing runs on a GPU, `MachineError` where one is not installed. `local`: it is judged here.
    """
    from kernelwright.sandbox.judge.cuda_toolkit import PROFILE, SANITIZE, require_tools

    for option, asked in ((SANITIZE, sanitize), (PROFILE, profile)):
        if asked and not gpu:
            raise UserMistake(
                f"{option} looks at kernels on a GPU, and what is judged here runs on the processor; leave it out, or "
                "judge candidates that run there, such as cuda or triton"
            )
    if local:
        require_tools(sanitize, profile)


def check_threads(threads: int | None, devices: int | None = None) -> None:
    """`UserMistake` for more threads than a device here has cores: they would take turns, and be slower than fewer."""
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // (devices or 1))
    if threads is not None and threads > share:
        where = "this machine" if share == cores else f"each of the {devices} devices of this machine"
        raise UserMistake(f"--threads is {threads} and {where} has {cores_words(share)}; give at most {share}")


def cores_words(count: int) -> str:
    """`1 core`, `2 cores`."""
    return "1 core" if count == 1 else f"{count} cores"


def executor_choice(
    executor: str,
    address: str | None,
    devices: int | None,
    kind: str | None,
    builders: int | None = None,
    server: str | None = None,
) -> "ExecutorChoice":
    """The executor that the options name; `UserMistake` for one that is none."""
    from kernelwright.sandbox.pool.executor_choice import NAMES, ExecutorChoice

    if server is not None:
        given = {"executor": executor != "local", "address": address, "devices": devices, "kind": kind}
        if own := [name for name, value in (given | {"builders": builders}).items() if value]:
            raise UserMistake(f"--{own[0]} is the service's to choose; leave it out, or --server (KERNELWRIGHT_SERVER)")
        return ExecutorChoice(server=server)
    if executor not in NAMES:
        raise UserMistake(f"no executor {executor!r}; there are: {', '.join(NAMES)}")
    if address is not None and executor != "ray":
        raise UserMistake(f"--address {address} names a Ray cluster; add --executor ray, or leave it out")
    if address is not None and devices is not None:
        raise UserMistake("--devices is for devices of this machine, and --address names a cluster; leave one out")
    return ExecutorChoice.model_validate(
        {"executor": executor, "address": address, "devices": devices, "kind": kind, "builders": builders}
    )
