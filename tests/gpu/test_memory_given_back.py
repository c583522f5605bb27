"""Device memory that is given back, taken again, or short: results are right, and a judging ends in a verdict."""

from contextlib import closing

import pytest
import torch

from kernelwright.sandbox import gpu_timing
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.gpu_buffers import SPARE_PLACES
from kernelwright.sandbox.calls.gpu_chain import Work, rehearse, run_chain
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.honest import LINEAR, RELU, problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
GIVING = problem("giving", "torch.cuda.empty_cache(); return inputs[0] * 2", "torch.randn(2048, 4096)")
LARGE = problem("large", "return torch.relu(inputs[0])", "torch.randn(2**18, 1024)")
GIVES_BACK = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.cuda.empty_cache()
        return torch.clamp(x, min=0)
"""


def test_a_reference_that_is_measured_shows_its_own_results_afterwards():
    session = backend_of(SETTINGS).reference(RELU)
    try:
        values = session.draw()
        before = session.keep(session.show(values).output)
        assert session.needs.result  # for which the child gives back all that it keeps
        assert session.keep(session.show(values).output) == before
    finally:
        session.close()


def test_what_takes_new_memory_for_each_call_is_not_kept_from_giving_it_back():
    session = backend_of(SETTINGS).reference(GIVING)
    try:
        values = session.draw()
        for _ in range(3 * SPARE_PLACES):
            session.call_ms(values)
        assert session._session.mapped_allocations <= 1 + SPARE_PLACES
    finally:
        session.close()


def test_a_candidate_that_gives_memory_back_in_each_call_is_right():
    with Judges() as judges:
        verdict = judges.judged(RELU, GIVES_BACK)
    assert verdict.outcome == "passed", verdict


def test_where_memory_runs_out_in_the_middle_of_a_measurement_it_goes_on_with_less(monkeypatch):
    monkeypatch.setattr(gpu_timing, "MEMORY_SHARE", 8.0)  # as if another program took it after the calls were planned
    torch.cuda.empty_cache()
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - 27 * 2**30, dtype=torch.uint8, device="cuda")
    with Judges() as judges:
        verdict = judges.judged(LARGE, GIVES_BACK.replace("torch.cuda.empty_cache()", "pass"))
    assert verdict.outcome == "passed", verdict
    assert ballast.numel()


def test_calls_that_compute_nothing_need_memory_for_one_result_however_many_they_are():
    result, work, calls = 2**30, Work("touch", [2**30]), 6
    reference = backend_of(SETTINGS).reference(LARGE)
    try:
        values = reference.draw()
        with reference.backend.device_lock(), reference.on_device() as session:
            rehearse(session, work, values, calls)
            torch.cuda.empty_cache()
            spare = torch.cuda.mem_get_info()[0] - int(1.5 * result)
            ballast = torch.empty(spare, dtype=torch.uint8, device="cuda")
            chain = run_chain(session, work, [values] * calls, values, True)
    finally:
        reference.close()
    assert len(chain.links) == calls and ballast.numel() == spare


@pytest.mark.parametrize("is_short", [False, True])
def test_all_baselines_start_together_where_memory_is_not_short(is_short):
    backend = backend_of(SETTINGS.model_copy(update={"compiled": ("default",)}))
    with backend.device_lock(), closing(backend.baselines(LINEAR)) as baselines:
        assert baselines.first.needs.result
        torch.cuda.empty_cache()
        spare = torch.cuda.mem_get_info()[0] - 3 * 2**30 if is_short else 0
        ballast = torch.empty(spare, dtype=torch.uint8, device="cuda")
        assert baselines.is_tight == is_short
        baselines.start()
        started = {form.baseline for form in baselines._others}
        assert ("torch.compile default" in started) == (not is_short)
        assert "torch.compile default" in {other.name for other in baselines.others(0)}
    assert ballast.numel() == spare
