"""A problem for which memory ran out while it was judged: told as the problem's, so that others go on."""

import errno
from collections.abc import Callable
from typing import TypeVar

import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.machine.escaping import one_line
from kernelwright.sandbox.verdict.errors import UnsupportedHere

R = TypeVar("R")


def within_memory(problem: Problem, work: Callable[[], R]) -> R:
    """What `work` returns. Raises `UnsupportedHere` where it ran out of memory, on this machine or on its device.

    The error that said so is let go first: its frames hold the tensors that are to make room for the next problem.
    """
    try:
        return work()
    except (MemoryError, torch.OutOfMemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        why = one_line(str(error).partition("\n")[0].strip() or type(error).__name__, 200)
    raise UnsupportedHere(
        f"memory ran out while {problem.name} was judged ({why}); use one with more, or a smaller size"
    )
