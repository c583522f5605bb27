"""Whose doing it is that device memory is missing: the candidate's, or the problem's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.device import CudaDevice, device_of
from kernelwright.sandbox.calls.memory_planning import CONTEXT_BYTES, ON_DEVICE, refusal
from kernelwright.sandbox.calls.memory_relief import OUT_OF_MEMORY, free_cached_memory
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.errors import StageFailed, UnsupportedHere
from kernelwright.sandbox.verdict.memory import gib
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child.driver import CudaError

GRANTED = 1.5
"""Times what a reference takes, that a candidate may take before it is to blame."""


@contextmanager
def explained(problem: Problem, settings: Settings, baselines: Baselines, built: Built) -> Iterator[None]:
    """Judge inside. Where the device's memory does not do, raises `StageFailed` or `UnsupportedHere`.

    It may lack to the judge or to the reference, and for both the candidate may be why.
    """
    said = None
    try:
        yield
        return
    except torch.OutOfMemoryError:
        pass
    except UnsupportedHere as error:
        said = error
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    device = device_of(settings)
    taken = _taken_by_candidate(built, device)
    needs = baselines.first.needs
    granted = GRANTED * (needs.weights + needs.peak + CONTEXT_BYTES)
    if taken > granted:
        raise StageFailed(
            "run",
            f"the candidate takes {gib(taken)} of the device's memory, more than {GRANTED:g} times what the reference "
            f"does, and there is none left to judge it; {gib(granted)} can be granted",
        )
    raise said or UnsupportedHere(refusal(problem.name, needs, device.total_bytes(), ON_DEVICE))


def _taken_by_candidate(built: Built, device: CudaDevice) -> int:
    """What is free once its worker has ended, over what was free before, without what the judge had lent it."""
    device.make_current()
    free_cached_memory()
    before, lent = device.free_bytes(), 0
    if built.worker is not None:
        lent = built.worker.lent_bytes
        built.worker.close()
    return max(0, device.free_bytes() - before - lent)
