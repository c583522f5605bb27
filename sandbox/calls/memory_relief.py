"""When device memory runs short: everybody who keeps some only to be quicker gives it back, and it is tried again."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.memory import gib

LOG = logging.getLogger("kernelwright.sandbox.calls")
Result = TypeVar("Result")
OUT_OF_MEMORY = 2
"""The driver's code for it."""

_relieving = threading.RLock()
"""Of two threads that are short of memory the second finds what the first has freed; no session is asked by both."""
_givers: list[tuple[int, Callable[[], None]]] = []


def register(giver: Callable[[], None], ordinal: int) -> Callable[[], None]:
    """Have `giver` called when memory of this device runs short; returns what takes it off the list again."""
    entry = ordinal, giver
    _givers.append(entry)
    return lambda: _givers.remove(entry)


def relieve() -> None:
    """Have all give back what they keep on the calling thread's device, this process first. Hold the device."""
    with _relieving:
        before = _free_bytes()
        free_cached_memory()
        here = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        asked = [giver for ordinal, giver in tuple(_givers) if ordinal == here]
        for giver in asked:
            _ask(giver)
    LOG.info("memory ran short on device %d: %d sessions were asked for theirs, %s", here, len(asked), _freed(before))


def _free_bytes() -> int | None:
    """What is free on the calling thread's device; None where torch has not been there."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _freed(before: int | None) -> str:
    after = _free_bytes()
    return "what came of it is not known" if before is None or after is None else f"{gib(after - before)} came of it"


def _ask(giver: Callable[[], None]) -> None:
    """What goes wrong with one is no matter of who is in need: it may be of another problem, or have just ended."""
    try:
        giver()
    except SandboxError as error:
        LOG.info("no memory was given back: %s", error)


def with_relief(work: Callable[[], Result]) -> Result:
    """What `work` gives; where memory is missing, once more after `relieve`. Raises what it raises then."""
    from kernelwright_child.driver import CudaError

    try:
        return work()
    except torch.OutOfMemoryError:
        pass
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    relieve()
    return work()


def free_cached_memory() -> None:
    """Give back what torch keeps of this process's own device memory."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
