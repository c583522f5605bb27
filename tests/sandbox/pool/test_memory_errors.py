import errno
import gc
import weakref

import pytest
import torch

from kernelwright.sandbox.pool.judges import within_memory
from kernelwright.sandbox.verdict.errors import UnsupportedHere
from tests.support.executors import SUM

RAN_OUT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB.\nSee the manual."),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


def failing(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize("error", RAN_OUT, ids=lambda error: type(error).__name__)
def test_memory_that_ran_out_names_the_problem(error):
    with pytest.raises(UnsupportedHere, match=r"^memory ran out.* cumsum .*\(.+\)"):
        within_memory(SUM, failing(error))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("a bug")])
def test_any_other_error_stays_what_it_is(error):
    with pytest.raises(type(error), match=str(error.args[-1])):
        within_memory(SUM, failing(error))


def test_what_the_failed_judging_held_is_let_go():
    held = []

    def work():
        large = torch.empty(8)
        held.append(weakref.ref(large))
        raise MemoryError

    with pytest.raises(UnsupportedHere) as caught:
        within_memory(SUM, work)
    gc.collect()
    assert caught.value.__context__ is None and held[0]() is None
