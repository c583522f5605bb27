"""Problems at 16 bits on a device: kernels that add in float32 pass, those that add in 16 bits or round lower fail."""

import pytest

from kernelwright.sandbox.authenticity.scan import refuse
from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from kernelwright_child import driver
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.short_floats import DTYPES, HONEST, HOSTILE

AT_EACH = pytest.mark.parametrize("dtype", DTYPES)
ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]


def on_device(test):
    """For tests that need one."""
    for mark in ON_DEVICE:
        test = mark(test)
    return test


@pytest.fixture(scope="module", params=DTYPES)
def verdicts(device, request):
    """Of all candidates at one dtype, by name: all are built side by side."""
    with Judges(SETTINGS.model_copy(update={"call_timeout_s": 30})) as judges:
        pairs = [(name, *short.at(request.param)) for name, short in (HONEST | HOSTILE).items()]
        yield dict(judges.all_judged(pairs))


@on_device
@pytest.mark.parametrize("name", HONEST)
def test_sums_in_float32_pass(verdicts, name):
    assert isinstance(verdicts[name], Passed), verdicts[name].reason


@on_device
@pytest.mark.parametrize("name", HOSTILE)
def test_sums_in_16_bits_and_lower_precision_fail(verdicts, name):
    found = verdicts[name]
    assert isinstance(found, Failed), f"{name} passed"
    assert found.stage == "check" and "error" in found.reason, found.reason


@on_device
@pytest.mark.parametrize("name", [name for name in HONEST if name.startswith("plain")])
def test_plain_torch_is_no_faster_than_itself(verdicts, name):
    assert isinstance(verdicts[name], Passed), verdicts[name].reason
    assert verdicts[name].measurement.comparison != "faster"


@AT_EACH
@pytest.mark.parametrize("name", HONEST | HOSTILE)
def test_each_is_a_program_that_the_scan_lets_through(name, dtype):
    problem, source = (HONEST | HOSTILE)[name].at(dtype)
    assert not refuse(source) and problem.dtype == dtype
    compile(source, name, "exec")
    compile(problem.source, name, "exec")
