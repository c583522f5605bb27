"""Which kind of session a child gets: on the processor, or on the device where the settings say so."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.locks import PATIENT, WaitLimit, processor_lock
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder

Made = TypeVar("Made")


def open_session(kind: Kind, folder: WorkFolder, settings: Settings) -> Session:
    """Start a child. A builder needs no device: what it compiles with runs on the processor."""
    if kind == "builder" or not settings.gpu:
        return Session(kind, folder, settings)
    from kernelwright.sandbox.calls.device import device_of
    from kernelwright.sandbox.calls.gpu_session import GpuSession

    return GpuSession(kind, folder, settings, device_of(settings))


def device_held(settings: Settings, waiting: WaitLimit = PATIENT) -> AbstractContextManager[None]:
    """Within it no other judge of this machine times anything on the GPU; nothing where the settings have none."""
    if not settings.gpu:
        return nullcontext()
    from kernelwright.sandbox.calls.device import device_of

    return device_of(settings).hold(waiting.stopped)


def all_at_once(settings: Settings, works: Sequence[Callable[[], Made]], most: int | None = None) -> list[Made]:
    """What each comes to, side by side where nothing is timed; hold the device meanwhile, where there is one.

    The first error is raised once all have come to their end.
    """
    if not works:
        return []
    with ThreadPoolExecutor(most or len(works)) as pool:
        futures = [pool.submit(_as_guest, settings, work) for work in works]
    return [future.result() for future in futures]


def _as_guest(settings: Settings, work: Callable[[], Made]) -> Made:
    if not settings.gpu:
        return work()
    from kernelwright.sandbox.calls.device import device_of

    with device_of(settings).as_guest():
        return work()


def timing_turn(settings: Settings, waiting: WaitLimit) -> AbstractContextManager[None]:
    """Within it nothing of ours disturbs a timing on the cores; come with the device's turn, where there is one.

    What runs on a GPU is timed beside builds, and beside what other GPUs' judges do on the same cores.
    """
    return processor_lock(settings.cores, shared=settings.gpu, waiting=waiting)


def build_turn(settings: Settings, waiting: WaitLimit) -> AbstractContextManager[None]:
    """Within it nothing is timed on the cores that the build would take from it; nothing where there are some to spare.

    Builds share their turn.
    """
    if settings.gpu or settings.threads < len(settings.cores):
        return nullcontext()
    return processor_lock(settings.cores, shared=True, waiting=waiting)


def architecture(settings: Settings) -> str:
    """Of the device, as `9.0`; empty where the settings have none."""
    if not settings.gpu:
        return ""
    from kernelwright.sandbox.calls.device import device_of

    return device_of(settings).architecture
