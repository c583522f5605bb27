"""The devices of this machine: its CUDA devices, or equal parts of its cores; and what a worker is started for."""

import os
from itertools import pairwise
from typing import Any

from kernelwright.problems.problem import Record
from kernelwright.sandbox.machine import processor_name
from kernelwright.sandbox.pool.protocol import Conditions, Device, ExecutorError
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"


def given(settings: Settings) -> dict[str, Any]:
    """What was chosen of the settings; which cores and which of several GPUs it has is each device's own affair."""
    chosen = settings.model_dump(mode="json", exclude_unset=True)
    chosen.pop("cores", None)
    return chosen | ({"device": "cuda"} if settings.gpu else {})


def is_on_gpu(chosen: dict[str, Any]) -> bool:
    return bool(chosen.get("device", "cpu") != "cpu")


def settings_on(chosen: dict[str, Any], cores: tuple[int, ...]) -> Settings:
    """The chosen settings for a device that has these cores: no more threads than there are."""
    threads = min(int(chosen.get("threads", len(cores))), len(cores))
    return Settings.model_validate(chosen | {"cores": cores, "threads": threads})


def split(cores: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    """Equal parts, the first ones taking what is left over. Raises `ExecutorError` for more parts than cores."""
    if not 1 <= parts <= len(cores):
        raise ExecutorError(f"{parts} devices were asked for and this machine has {len(cores)} cores; ask for fewer")
    size, left = divmod(len(cores), parts)
    ends = [number * size + min(number, left) for number in range(parts + 1)]
    return [cores[start:end] for start, end in pairwise(ends)]


def shared_cores(cores: tuple[int, ...], gpus: int) -> list[tuple[int, ...]]:
    """What each GPU's judge has of a machine's cores, however many of the GPUs are used: its own part if it can."""
    return split(cores, gpus) if gpus <= len(cores) else [cores] * gpus


def own_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def local_devices(settings: Settings, count: int | None) -> tuple[Device, ...]:
    """The first `count` CUDA devices, or as many equal parts of the cores; all CUDA devices, or one part, for None.

    Settings that name one of several (`cuda:1`) give that one. Raises `ExecutorError` for more than there are,
    `MachineError` where there is no CUDA device at all.
    """
    chosen = given(settings)
    if settings.gpu:
        names = _cuda_names()
        if count is not None and count > len(names):
            raise ExecutorError(f"{count} devices were asked for and torch sees {len(names)}; ask for fewer")
        shares = shared_cores(settings.cores, len(names))
        return tuple(
            device_at(ordinal, names[ordinal], chosen, shares[ordinal])
            for ordinal in ordinals(settings, count, len(names))
        )
    parts = split(settings.cores, count or 1)
    return tuple(device_at(ordinal, processor_name(), chosen, part) for ordinal, part in enumerate(parts))


def ordinals(settings: Settings, count: int | None, there: int) -> range:
    if ":" not in settings.device:
        return range(there if count is None else count)
    if count is not None:
        raise ExecutorError(f"{settings.device} is one device and {count} were asked for; leave out one of the two")
    if settings.ordinal >= there:
        raise MachineError(f"there is no {settings.device}: torch sees {there} CUDA devices; name one of those")
    return range(settings.ordinal, settings.ordinal + 1)


def device_at(ordinal: int, kind: str, chosen: dict[str, Any], cores: tuple[int, ...], node: str = "local") -> Device:
    """A device with the conditions of what is judged on it; call it on its node."""
    settings = settings_on(chosen, cores)
    conditions = Conditions.here(kind, settings.model_dump(mode="json"))
    return Device(kind=kind, ordinal=ordinal, node=node, cores=cores, conditions=conditions)


def device_of(settings: Settings) -> str:
    """The kind of what candidates are timed on by a worker that is told no device: the processor, or a GPU."""
    return _cuda_names()[settings.ordinal] if settings.gpu else processor_name()


def visible_device(ordinal: int) -> str:
    """What CUDA_VISIBLE_DEVICES has to be so that a process sees the one device alone, as number 0."""
    shown = [name for name in os.environ.get(CUDA_VISIBLE, "").split(",") if name]
    return shown[ordinal] if shown else str(ordinal)


def _cuda_names() -> list[str]:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise MachineError("torch sees no CUDA device; use a machine with a GPU, or candidates in cpp")
    return [str(torch.cuda.get_device_name(ordinal)) for ordinal in range(count)]


class WorkerOptions(Record):
    """The settings, and for a supervisor its device."""

    chosen: dict[str, Any]
    """The settings that were chosen, see `devices.given`; without a device they may say which cores to use."""
    device: Device | None = None
    """None in a build pool, and for a worker that has all that its process sees to itself."""
    alone: bool = True
    """Whether the device is all that its node has of its kind, not one of several or a part."""

    def settings(self) -> Settings:
        """The settings here; without a device all cores of the machine may be used, unless some were chosen."""
        cores = self.device.cores if self.device else tuple(self.chosen.get("cores", ()))
        return settings_on(self.chosen, cores or own_cores())

    def settle(self) -> None:
        """Stay on the device's own cores, with all that is started from here on. For a process that does only this."""
        if self.device is not None and self.device.cores and not self.alone:
            os.sched_setaffinity(0, self.device.cores)
