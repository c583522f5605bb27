"""The options that several commands share, each declared once: their types, groups and checks.

A command takes one as the annotation of a parameter, with the default next to it: `device: DeviceOption = None`. A
group is a parameter of its own: `judging: JudgingOptions = RANKING`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from kernelwright.terminal import UserMistake

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judge_pool import Where
    from kernelwright.sandbox.verdict.settings import CompileMode, JudgeSettings, JudgingEffort

SizeOption = Annotated[
    str | None,
    typer.Option("--size", help="Size of catalog problems: cpu or gpu; default: gpu for what runs on one, else cpu."),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device: cpu, cuda or cuda:N; default: a GPU, unless there is none or the candidate is for processors.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Cast weights and floating inputs: float32, float16 or bfloat16 (fp32, fp16, bf16); default: no cast.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory limit, such as 24GiB: of each child on a processor, of all on a GPU; default: all that is free.",
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads of candidate and baseline; default: all cores.")
]
EffortOption = Annotated[
    str,
    typer.Option(
        "--effort", help="Measurement: screen (correct or not), search (enough to choose) or rank (to be published)."
    ),
]
AccuracyOption = Annotated[
    str,
    typer.Option(
        "--accuracy", help="Allowed errors: ieee, default (as torch's precision switches allow), tf32, or kernelbench."
    ),
]
JailOption = Annotated[str, typer.Option("--jail", help="Jail around candidates: auto, strict or off.")]
ExecutorOption = Annotated[str, typer.Option("--executor", help="Executor of judging: local or ray.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of a Ray cluster; default: one made here.")
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        help="Number of GPUs, or of equal parts of the cores; default: all GPUs, the processor as 1 part; "
        "for a run 1, or all with --kind.",
    ),
]
KindOption = Annotated[str | None, typer.Option("--kind", help="Judge only on devices with this in their name.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="KERNELWRIGHT_SERVER",
        help="Judge by a running `kernelwright serve`: unix:PATH or http://HOST:PORT; default: here.",
    ),
]
BuildersOption = Annotated[int | None, typer.Option(min=1, help="Builds side by side; default: one a core.")]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="Leave a prompt section out; may be repeated.")
]
PresetsOption = Annotated[Path | None, typer.Option("--presets", help="Table of further servers (TOML).")]
TopOption = Annotated[int, typer.Option(min=1, help="Parts to choose at most.")]
ProblemArgument = Annotated[str, typer.Argument(help="Catalog name, path of a .py file, or PATH::ID.")]
RunArgument = Annotated[Path, typer.Argument(help="Folder of the run.")]
ResultsArgument = Annotated[Path, typer.Argument(help="Folder of a run, or the --out of a score.")]


class JudgingOptions(NamedTuple):
    """Judging: size, device, dtype, memory, baselines, accuracy, tools."""

    size: SizeOption = None
    device: DeviceOption = None
    dtype: DtypeOption = None
    memory: MemoryOption = None
    threads: ThreadsOption = None
    compiled: Annotated[
        list[str] | None,
        typer.Option("--compile", help="Measure against this torch.compile mode too; may be repeated."),
    ] = None
    baselines: Annotated[
        str | None,
        typer.Option(
            help="On a GPU: shipped,tf32,channels_last by default; or none, compiled-tf32, compiled-shipped (slow)."
        ),
    ] = None
    weights: Annotated[
        str,
        typer.Option(
            help="Weights of a candidate: copy, seed (both models made under one seed) or auto (copy, else seed)."
        ),
    ] = "auto"
    effort: EffortOption = "rank"
    accuracy: AccuracyOption = "ieee"
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="On a GPU: run correct candidates once more under compute-sanitizer; a faulty access fails them.",
        ),
    ] = False
    profile: Annotated[
        bool | None,
        typer.Option(
            help="Look closer at correct candidates, for the next prompt: ncu's counters on a GPU, else machine code. "
            "Default: only in a run on a GPU whose counters can be read."
        ),
    ] = None
    wait_quiet: Annotated[
        bool, typer.Option("--wait-quiet", help="Before timing, wait until no other program loads the cores.")
    ] = False
    jail: JailOption = "auto"

    def settings(self, device: str, **more: Any) -> "JudgeSettings":
        """Return the settings of a device from the given options; `UserMistake` for values that cannot be."""
        from kernelwright.sandbox.verdict.settings import BaselineGroup, JudgeSettings, WeightsPolicy

        given: dict[str, Any] = {"device": device, "jail": self.jail} | more
        checked("jail policy", [self.jail], JudgeSettings.model_fields["jail"].annotation)
        if checked("accuracy", [self.accuracy], JudgeSettings.model_fields["accuracy"].annotation) != ("ieee",):
            given["accuracy"] = self.accuracy
        given |= {tool: True for tool in ("sanitize", "profile", "wait_quiet") if getattr(self, tool)}
        given["compiled"] = compile_modes(self.compiled or ())
        if self.baselines is not None:
            listed = [] if self.baselines == "none" else [name.strip() for name in self.baselines.split(",")]
            given["baselines"] = checked("group of --baselines", listed, BaselineGroup)
            if not self.compiled and any(name.startswith("compiled") for name in listed):
                raise UserMistake(f"--baselines {self.baselines} adds to --compile; give --compile MODE too")
        if checked("policy of --weights", [self.weights], WeightsPolicy) != ("auto",):
            given["weights"] = self.weights
        if self.memory is not None:
            given["memory_bytes" if device == "cpu" else "device_memory_bytes"] = memory_size(self.memory)
        if self.threads is not None:
            given["threads"] = self.threads
        if judging_effort(self.effort) != "rank":
            given["effort"] = self.effort
        if self.effort == "screen" and (self.compiled or self.baselines or self.sanitize or self.profile):
            raise UserMistake(
                "--effort screen is one worker against eager, without tools; leave --compile, --sanitize, --profile "
                "and --baselines out, or give --effort search"
            )
        if self.effort != "rank" and "min_pairs" in more:
            raise UserMistake(
                f"--effort {self.effort} takes as few pairs as will do; leave --pairs out, or give --effort rank"
            )
        return JudgeSettings.model_validate(given)

    def check_tools(self, gpu: bool, local: bool = True) -> None:
        """Check that the tools make sense and are there, before anything is judged.

        `UserMistake` for memcheck where nothing runs on a GPU, `MachineError` where a tool is not installed. `local`:
        it is judged here.
        """
        from kernelwright.sandbox.machine import SANITIZE, require_closer_look

        if self.sanitize and not gpu:
            raise UserMistake(
                f"{SANITIZE} looks at kernels on a GPU, and what is judged here runs on the processor; leave it out, "
                "or judge candidates that run there, such as cuda or triton"
            )
        if local:
            require_closer_look(self.sanitize, bool(self.profile), gpu)


RANKING, SEARCHING = JudgingOptions(), JudgingOptions(effort="search")


class DeviceOptions(NamedTuple):
    """Devices: those that judge many candidates, of this machine, of a cluster or of a service."""

    executor: ExecutorOption = "local"
    address: AddressOption = None
    devices: DevicesOption = None
    kind: KindOption = None
    server: ServerOption = None

    def choice(self, builders: int | None = None) -> "Where":
        """Return the executor that the options name; `UserMistake` for an unknown one."""
        from kernelwright.sandbox.pool.judge_pool import NAMES, Where

        given = self._asdict() | {"builders": builders}
        if self.server is not None:
            given |= {"server": None, "executor": None if self.executor == "local" else self.executor}
            if own := [name for name, value in given.items() if value]:
                raise UserMistake(
                    f"--{own[0]} is the service's to choose; leave it out, or --server (KERNELWRIGHT_SERVER)"
                )
            return Where(server=self.server)
        if self.executor not in NAMES:
            raise UserMistake(f"no executor {self.executor!r}; there are: {', '.join(NAMES)}")
        if self.address is not None and self.executor != "ray":
            raise UserMistake(f"--address {self.address} names a Ray cluster; add --executor ray, or leave it out")
        if self.address is not None and self.devices is not None:
            raise UserMistake("--devices is for devices of this machine, and --address names a cluster; leave one out")
        return Where.model_validate({name: value for name, value in given.items() if name != "server"})

    def check_with(self, device: str | None) -> None:
        """Raise `UserMistake` where one device is named and several are requested, or a cluster allocates them."""
        if device is None or ":" not in device:
            return
        if self.devices is not None:
            raise UserMistake(
                f"--device {device} is one device, and --devices {self.devices} takes the first; give one of both"
            )
        if self.executor != "local":
            raise UserMistake(f"--device {device} is of this machine, and a cluster hands out its own; give cuda")


HERE = DeviceOptions()
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
LEAST_BYTES = 2**20


def checked(kind: str, names: Sequence[str], choices: Any) -> tuple[Any, ...]:
    """Return the names where each is one of a `Literal`; `UserMistake` for any other."""
    known = get_args(choices)
    for name in names:
        if name not in known:
            raise UserMistake(f"no {kind} {name!r}; there are: {', '.join(known)}")
    return tuple(names)


def judging_effort(name: str) -> "JudgingEffort":
    from kernelwright.sandbox.verdict.settings import JudgingEffort

    effort: JudgingEffort = checked("effort", [name], JudgingEffort)[0]
    return effort


def compile_modes(names: Sequence[str]) -> "tuple[CompileMode, ...]":
    from kernelwright.sandbox.verdict.settings import CompileMode

    return checked("torch.compile mode", names, CompileMode)


def check_target(target: str) -> None:
    from kernelwright.problems.languages import TARGETS

    if target not in TARGETS:
        raise UserMistake(f"no target {target!r}; there are: {', '.join(TARGETS)}")


def memory_size(text: str) -> int:
    """Convert `24GiB`, `24 GB` or `25769803776` to bytes; `UserMistake` for another text, or less than 1 MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", text.strip().upper())
    if match is None:
        raise UserMistake(f"--memory {text!r} is no size; give a number and a unit, such as 24GiB")
    count = int(float(match[1]) * UNITS[match[2] or ""])
    if count < LEAST_BYTES:
        raise UserMistake(f"--memory {text} is less than 1MiB; give a number and a unit, such as 24GiB")
    return count


def device_count() -> int:
    """Count the CUDA devices that this process may see."""
    from kernelwright_child import driver

    return driver.device_count()


def device_for(asked: str | None, language: str, size: str, local: bool = True) -> str:
    """Choose the device for candidates of this language and a problem of this size.

    `UserMistake` where that cannot be meant, `MachineError` where this machine has no such device. `local`: it is
    judged here, so this machine's devices count.
    """
    from kernelwright.problems.languages import ON_DEVICE
    from kernelwright.sandbox.machine import usual_device

    if asked is None:
        return usual_device(language, size)
    check_device(asked, device_count() if local else None)
    if asked == "cpu" and language in ON_DEVICE:
        raise UserMistake(
            f"--device cpu: what is written in {language} runs on a CUDA device and nowhere else; leave --device out, "
            "or give cuda"
        )
    return asked


def check_device(asked: str, count: int | None) -> None:
    """Raise `UserMistake` for what names no device, `MachineError` for one beyond `count`, which may be unknown."""
    from kernelwright.sandbox.verdict.errors import MachineError

    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", asked)
    if match is None:
        raise UserMistake(f"no device {asked!r}; there are: cpu, cuda, and cuda:N where there are several")
    if asked == "cpu" or count is None:
        return
    if count == 0:
        raise MachineError(f"--device {asked}: this machine has no CUDA device; use one that has, or give cpu")
    if int(match[1] or 0) >= count:
        there = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise MachineError(f"--device {asked}: this machine has {there}; give one of those")


def size_for(problem: str, size: str | None, device: str) -> str | None:
    """Return the given size; without one, `gpu` for a catalog problem on a GPU."""
    from kernelwright.problems import catalog_names

    return "gpu" if size is None and device != "cpu" and problem in catalog_names() else size


def device_words(device: str, dtype: str | None = None) -> str:
    """Return device, its name and the dtype, such as `cuda:0, NVIDIA H200, bfloat16`."""
    from kernelwright.sandbox.machine import device_name

    return ", ".join(part for part in (device, device_name(device), dtype) if part)


def check_threads(threads: int | None, devices: int | None = None) -> None:
    """Raise `UserMistake` for more threads than a device here has cores, where each would wait for the others."""
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // (devices or 1))
    if threads is not None and threads > share:
        where = "this machine" if share == cores else f"each of the {devices} devices of this machine"
        there = "1 core" if share == 1 else f"{share} cores"
        raise UserMistake(f"--threads is {threads} and {where} has {there}; give at most {share}")
