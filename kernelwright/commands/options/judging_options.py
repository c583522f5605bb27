"""Where, in which dtype, with how much memory and against what is judged: what those options come to, checked."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from kernelwright.commands.options.exit_codes import UserMistake

if TYPE_CHECKING:
    from kernelwright.sandbox.verdict.settings import CompileMode, JudgingEffort, Settings

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

    def settings(self, **more: Any) -> "Settings":
        """Settings with all that was said and nothing else; `UserMistake` for what can not be."""
        from kernelwright.sandbox.verdict.settings import BaselineGroup, Settings

        given: dict[str, Any] = {"device": self.device, "jail": self.jail} | more
        checked("jail policy", [self.jail], Settings.model_fields["jail"].annotation)
        given |= {tool: True for tool in ("sanitize", "profile") if getattr(self, tool)}
        given["compiled"] = compile_modes(self.compiled or ())
        if self.baselines is not None:
            listed = [] if self.baselines == "none" else [name.strip() for name in self.baselines.split(",")]
            given["baselines"] = checked("group of --baselines", listed, BaselineGroup)
            if not self.compiled and any(name.startswith("compiled") for name in listed):
                raise UserMistake(f"--baselines {self.baselines} adds to --compile; give --compile MODE too")
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
    """The effort of that name; `UserMistake` for any other."""
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
    from kernelwright_child.gpu import driver

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
