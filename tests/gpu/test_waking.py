"""Long calls: their events begin once the device has turned to the process, and the judge's own clock checks them."""

import statistics

import pytest
import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)

def get_inputs():
    return [torch.rand(ROWS, 32768)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("rows", [32, 32768], ids=["short", "long"])
def test_a_reference_is_as_fast_as_itself(rows):
    if 16 * rows * 32768 > torch.cuda.mem_get_info()[0]:
        pytest.skip(f"needs {16 * rows * 32768 / 2**30:.0f} GiB of free device memory")
    source = SOURCE.replace("ROWS", str(rows))
    problem = Problem(name="sums", title="Sums", family="test", size="file", source=source)

    verdict = judge(problem, Candidate(source=f"{source}\nModelNew = Model\n"), SETTINGS)

    assert isinstance(verdict, Passed), verdict
    samples = verdict.measurement.on_device.device_ms
    assert all((min(times) >= 1.0) is (rows == 32768) for times in samples.values())
    assert verdict.measurement.speedup == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("told", [1.0, 0.7], ids=["honest", "lying"])
def test_of_a_long_call_no_shorter_time_is_believed_than_the_judges_own_clock_supports(told):
    source = SOURCE.replace("ROWS", "16384")
    problem = Problem(name="sums", title="Sums", family="test", size="file", source=source)
    lie = f"""
took = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda start, end: {told} * took(start, end)
ModelNew = Model
"""

    found = judge(problem, Candidate(source=source + lie), SETTINGS.at("search")).measurement

    check = found.on_device.check
    assert (found.clock, check.method) == ("gpu", "chain")
    assert statistics.median(found.closest.candidate_ms) >= check.least_ms * (1 - 1e-9)
    assert found.comparison != "faster"
    assert found.speedup == pytest.approx(1.0, abs=0.05 if told == 1.0 else 0.15)
