import time

import pytest
import torch

from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.peaks import measured_again, peaks_here
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.roofline import NecessaryWork, floor_of
from kernelwright_child.roofline import trace

pytestmark = pytest.mark.slow
CALLS = 5


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return Store("peaks", tmp_path_factory.mktemp("peaks"))


@pytest.fixture(scope="session")
def peaks(store):
    return peaks_here(False, torch.get_num_threads(), store)


def test_measured_peaks_are_remembered(peaks, store):
    assert peaks_here(False, torch.get_num_threads(), store) == peaks


@pytest.mark.long
def test_measuring_again_keeps_the_better_figures(peaks, store):
    raised = measured_again(False, torch.get_num_threads(), store)
    assert all(raised.flops_per_s[kind] >= rate for kind, rate in peaks.flops_per_s.items())
    assert peaks_here(False, torch.get_num_threads(), store) == raised


@pytest.mark.parametrize("name", catalog_names())
def test_eager_pytorch_takes_longer_than_the_floor(peaks, name):
    problem = load_problem(name, "cpu")
    namespace = {}
    exec(compile(problem.source, name, "exec"), namespace)
    model, inputs = namespace["Model"](*namespace["get_init_inputs"]()), namespace["get_inputs"]()
    floor = floor_of(NecessaryWork.of(trace(model, inputs)), peaks, problem.precision)
    times = []
    with torch.no_grad():
        for _ in range(CALLS):
            start = time.perf_counter()
            model(*inputs)
            times.append(1e3 * (time.perf_counter() - start))
    assert 0 < floor.impossible_below_ms <= floor.floor_ms < min(times)
