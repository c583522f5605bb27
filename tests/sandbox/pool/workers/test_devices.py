import os

import pytest

from kernelwright.sandbox.pool.devices import WorkerOptions, given, is_on_gpu, ordinals, shared_cores
from kernelwright.sandbox.pool.protocol import ExecutorError
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings


def test_the_judges_of_several_gpus_have_cores_of_their_own_or_all_where_there_are_fewer():
    assert shared_cores(tuple(range(8)), 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert shared_cores((0, 1), 4) == [(0, 1)] * 4


def test_a_worker_without_a_device_keeps_to_the_cores_that_were_chosen():
    first = min(os.sched_getaffinity(0))
    settings = WorkerOptions(chosen={"cores": [first], "min_pairs": 4}).settings()
    assert (settings.cores, settings.threads, settings.min_pairs) == ((first,), 1, 4)


def test_what_was_chosen_for_a_gpu_is_known_as_such_wherever_it_is_sent():
    assert [is_on_gpu(given(Settings(device=name))) for name in ("cuda", "cuda:1", "cpu")] == [True, True, False]
    assert not is_on_gpu(given(Settings()))


def test_of_several_gpus_the_first_ones_are_taken_or_the_one_that_is_named():
    assert list(ordinals(Settings(device="cuda"), None, 4)) == [0, 1, 2, 3]
    assert list(ordinals(Settings(device="cuda"), 2, 4)) == [0, 1]
    assert list(ordinals(Settings(device="cuda:2"), None, 4)) == [2]


def test_one_gpu_by_its_number_is_not_several_and_one_beyond_those_there_are_is_the_machine_s_lack():
    with pytest.raises(ExecutorError, match="cuda:2 is one device"):
        ordinals(Settings(device="cuda:2"), 2, 4)
    with pytest.raises(MachineError, match=r"no cuda:4: .*4 CUDA"):
        ordinals(Settings(device="cuda:4"), None, 4)


def test_a_worker_that_sees_one_gpu_has_it_as_the_first():
    assert given(Settings(device="cuda:2", min_pairs=4)) == {"device": "cuda", "min_pairs": 4}
