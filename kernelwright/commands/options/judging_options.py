"""The options about judging that several commands share, each declared once, and what they come to, checked.

A command takes one as the annotation of a parameter, and gives the default beside it: `device: DeviceOption = None`.
They say where is judged, in which dtype, with how much memory and against what.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from kernelwright.commands.options.terminal import UserMistake

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judge_pool import Where
    from kernelwright.sandbox.verdict.settings import CompileMode, JudgingEffort, Settings

DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where it runs: cpu, cuda or cuda:N; default: a GPU, unless there is none or it is for processors.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Cast weights and floating inputs: float32, float16 or bfloat16 (fp32, fp16, bf16); default: as they are.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory that may be taken, as 24GiB: of a processor by each child, of a GPU by all; default: what fits.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of candidate and baseline; default: all cores."),
]
CompileOption = Annotated[
    list[str] | None,
    typer.Option("--compile", help="Measure against this torch.compile mode too; may be repeated."),
]
BaselinesOption = Annotated[
    str | None,
    typer.Option(
        "--baselines",
        help="On a GPU: shipped,tf32,channels_last by default; or none, compiled-tf32, compiled-shipped (slow).",
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        help="How a candidate gets the weights: copy, seed (both models constructed under one seed) or auto (copy, "
        "else seed).",
    ),
]
EffortOption = Annotated[
    str,
    typer.Option(
        "--effort",
        help="What a verdict may cost: screen (right or wrong), search (enough to choose) or rank (to be published).",
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--wait-quiet", help="Before timing, wait until no other program loads the cores.")
]
AccuracyOption = Annotated[
    str,
    typer.Option(
        "--accuracy",
        help="Errors that are right: ieee, default (as torch's precision switches allow), tf32, or kernelbench.",
    ),
]
JailOption = Annotated[str, typer.Option("--jail", help="Layers around what is judged: auto, strict or off.")]
SanitizeOption = Annotated[
    bool,
    typer.Option(
        "--sanitize",
        help="On a GPU: what is right is run once more under compute-sanitizer; a faulty access fails it.",
    ),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile", help="On a GPU: what is right is profiled; ncu's counters go into the verdict and the next prompt."
    ),
]
ExecutorOption = Annotated[str, typer.Option("--executor", help="Where judging runs: local or ray.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of a Ray cluster; default: one made here.")
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
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="Leave a prompt section out; may be repeated.")
]
PresetsOption = Annotated[Path | None, typer.Option("--presets", help="Table of further servers (TOML).")]
RunArgument = Annotated[Path, typer.Argument(help="Folder of the run.")]


def size_option(default: str, problems: str = "a catalog problem") -> Any:
    """`--size`; what it is by default depends on the command, in whose words it is told."""
    return typer.Option("--size", help=f"Size of {problems}: cpu or gpu; default: {default}.")


def devices_option(default: str) -> Any:
    return typer.Option(
        "--devices", min=1, help=f"How many GPUs, or equal parts of the cores, judge here; default: {default}."
    )


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
LEAST_BYTES = 2**20


class JudgingOptions(NamedTuple):
    """What the user said of the judging; `device` is where that comes to, see `device_for`."""

    device: str
    memory: str | None = None
    threads: int | None = None
    compiled: Sequence[str] | None = None
    jail: str = "auto"
    sanitize: bool = False
    profile: bool = False
    effort: str = "rank"
    baselines: str | None = None
    weights: str = "auto"
    wait_quiet: bool = False
    accuracy: str = "ieee"

    def settings(self, **more: Any) -> "Settings":
        """Settings with all that was said and nothing else; `UserMistake` for what can not be."""
        from kernelwright.sandbox.verdict.settings import BaselineGroup, Settings, WeightsPolicy

        given: dict[str, Any] = {"device": self.device, "jail": self.jail} | more
        checked("jail policy", [self.jail], Settings.model_fields["jail"].annotation)
        if checked("accuracy", [self.accuracy], Settings.model_fields["accuracy"].annotation) != ("ieee",):
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
            name = "memory_bytes" if self.device == "cpu" else "device_memory_bytes"
            given[name] = memory_size(self.memory)
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
        return Settings.model_validate(given)


def checked(kind: str, names: Sequence[str], choices: Any) -> tuple[Any, ...]:
    """The names, each of which is one of a `Literal`; `UserMistake` for any other."""
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
    """Modes of torch.compile; `UserMistake` for a name that is none."""
    from kernelwright.sandbox.verdict.settings import CompileMode

    return checked("torch.compile mode", names, CompileMode)


def memory_size(text: str) -> int:
    """`24GiB`, `24 GB` or `25769803776` in bytes; `UserMistake` for what is no size, or too small for anything."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", text.strip().upper())
    if match is None:
        raise UserMistake(f"--memory {text!r} is no size; give a number and a unit, such as 24GiB")
    count = int(float(match[1]) * UNITS[match[2] or ""])
    if count < LEAST_BYTES:
        raise UserMistake(f"--memory {text} is less than 1MiB; give a number and a unit, such as 24GiB")
    return count


def device_count() -> int:
    """CUDA devices that this process may see."""
    from kernelwright_child import driver

    return driver.device_count()


def device_for(asked: str | None, language: str, size: str, local: bool = True) -> str:
    """Where candidates of this language are judged, for a problem of this size.

    `UserMistake` where that can not be what is meant, `MachineError` where this machine has no such device. `local`: it
    is judged here, so this machine's devices count.
    """
    from kernelwright.sandbox.machine.identity import ON_DEVICE, needs_device

    if asked is None:
        return "cuda" if needs_device(language, size) else "cpu"
    check_device(asked, device_count() if local else None)
    if asked == "cpu" and language in ON_DEVICE:
        raise UserMistake(
            f"--device cpu: what is written in {language} runs on a CUDA device and nowhere else; leave --device out, "
            "or give cuda"
        )
    return asked


def check_device(asked: str, count: int | None) -> None:
    """`UserMistake` for what names no device, `MachineError` for one beyond those; None where it is not known."""
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


def check_together(device: str | None, devices: int | None, executor: str = "local") -> None:
    """`UserMistake` where one device is named and several are asked for, or a cluster hands them out."""
    if device is None or ":" not in device:
        return
    if devices is not None:
        raise UserMistake(f"--device {device} is one device, and --devices {devices} takes the first; give one of both")
    if executor != "local":
        raise UserMistake(f"--device {device} is of this machine, and a cluster hands out its own; give cuda")


def size_for(problem: str, size: str | None, device: str) -> str | None:
    """The size asked for; of a catalog problem on a GPU the one for that, where none was."""
    from kernelwright.problems import catalog_names

    return "gpu" if size is None and device != "cpu" and problem in catalog_names() else size


def place_words(device: str, dtype: str | None = None) -> str:
    """`cuda:0, NVIDIA H200, bfloat16`: where something is judged, and in what it was cast to."""
    from kernelwright.sandbox.machine.identity import device_name

    return ", ".join(part for part in (device, device_name(device), dtype) if part)


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
        there = "1 core" if share == 1 else f"{share} cores"
        raise UserMistake(f"--threads is {threads} and {where} has {there}; give at most {share}")


def executor_choice(
    executor: str,
    address: str | None,
    devices: int | None,
    kind: str | None,
    builders: int | None = None,
    server: str | None = None,
) -> "Where":
    """The executor that the options name; `UserMistake` for one that is none."""
    from kernelwright.sandbox.pool.judge_pool import NAMES, Where

    if server is not None:
        given = {"executor": executor != "local", "address": address, "devices": devices, "kind": kind}
        if own := [name for name, value in (given | {"builders": builders}).items() if value]:
            raise UserMistake(f"--{own[0]} is the service's to choose; leave it out, or --server (KERNELWRIGHT_SERVER)")
        return Where(server=server)
    if executor not in NAMES:
        raise UserMistake(f"no executor {executor!r}; there are: {', '.join(NAMES)}")
    if address is not None and executor != "ray":
        raise UserMistake(f"--address {address} names a Ray cluster; add --executor ray, or leave it out")
    if address is not None and devices is not None:
        raise UserMistake("--devices is for devices of this machine, and --address names a cluster; leave one out")
    return Where.model_validate(
        {"executor": executor, "address": address, "devices": devices, "kind": kind, "builders": builders}
    )
