"""Lending, looking, poisoning and waiting on a real device, and every hostile and honest candidate on it."""

import os
import statistics
import subprocess
import sys
import time

import pytest
import torch

from kernelwright.agent.briefs import baselines_of
from kernelwright.agent.log.events import MeasuredProblem
from kernelwright.agent.log.view import View
from kernelwright.agent.scheduler import measuring
from kernelwright.problems import Problem
from kernelwright.sandbox.calls.gpu_buffers import SharedDeviceMemory, Shown, fetch, poison, seen
from kernelwright.sandbox.judge.doctor import gpu_findings
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.locks import device_holder
from kernelwright.sandbox.machine import tool_path
from kernelwright.sandbox.tensors import RawTensor
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from kernelwright_child import driver
from tests.gpu import faulty
from tests.gpu.attacks import ATTACKS, NOT_FASTER, PROBLEM, SLOWER
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.honest import HONEST, NORM, RELU

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
CONVOLVED = Problem(
    name="convolved",
    title="A convolution, for which PyTorch allows TF32 as it ships",
    family="test",
    size="gpu",
    source="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(64, 64, 3)

    def forward(self, x):
        return self.convolution(x)


def get_inputs():
    return [torch.randn(32, 64, 64, 64)]


def get_init_inputs():
    return []
""",
)
BUSY = """
import sys, time, torch
x = torch.zeros(1, device="cuda")
print(1, flush=True)
end = time.time() + 60
while time.time() < end:
    torch.cuda._sleep(40_000_000)
    torch.cuda.synchronize()
"""


def shown(tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    return Shown(dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr(), size)


@pytest.fixture
def shared(device):
    memory = SharedDeviceMemory([("float32", (1000, 1000)), ("float32", (7,))])
    yield memory
    memory.close()


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_what_is_staged_is_not_shown_before_it_is_revealed(device, shared, place):
    device.calibrate(shared)
    shared.stage([RawTensor.of(torch.randn(*shape, device=place)) for shape in ((1000, 1000), (7,))])
    assert shared.changed()
    device.prepare(shared)
    assert not shared.changed()


def test_inputs_that_were_spoilt_are_other_ones(device, shared):
    device.calibrate(shared)
    shared.stage([RawTensor.of(torch.randn(*shape, device="cuda")) for shape in ((1000, 1000), (7,))])
    device.prepare(shared)
    shared.overwrite(device.stream)
    device.stream.wait()
    assert shared.changed()


def test_a_device_that_nobody_uses_is_found_idle(device, shared):
    device.calibrate(shared)
    assert sum(device.prepare(shared).was_idle for _ in range(20)) >= 18


def test_a_device_that_another_process_uses_is_found_busy(device, shared):
    device.calibrate(shared)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        time.sleep(0.5)
        idle = [device.prepare(shared).was_idle for _ in range(20)]
        other.kill()
    assert sum(idle) <= 2


def test_a_glance_sees_what_lies_there(device):
    tensor = torch.randn(1_000_003, device="cuda")
    torch.cuda.synchronize()
    (sample,) = device.sampler.sample([shown(tensor)])
    values, data = fetch(shown(tensor))
    assert sample.agrees(data)
    assert torch.equal(values.tensor(), tensor)


def test_many_outputs_are_looked_at_each_for_itself(device):
    tensors = [torch.full((5000,), float(index), device="cuda") for index in range(150)]
    torch.cuda.synchronize()
    glances = device.sampler.sample([shown(tensor) for tensor in tensors])
    data = [fetch(shown(tensor))[1] for tensor in tensors]
    assert all(sample.agrees(own) for sample, own in zip(glances, data, strict=True))
    assert not glances[0].agrees(data[1])


def test_poison_reaches_every_element(device):
    for count in (1, 5, 4096, 100_001):
        tensor = torch.zeros(count, device="cuda", dtype=torch.float16)
        torch.cuda.synchronize()
        poison(shown(tensor), device.stream)
        device.stream.wait()
        assert tensor[: count // 2 * 2].isnan().all()
        assert (tensor != 0).all()


def test_memory_of_the_judge_can_be_seen_as_a_tensor_without_a_copy(device):
    address = driver.allocate(2**21)
    try:
        device.stream.fill(address, 5, 2**19)
        device.stream.wait()
        assert (seen(address, 2**21).view(torch.int32) == 5).all()
    finally:
        driver.free(address)


def test_the_device_is_locked_by_this_process(device):
    assert device_holder(device.uuid) == f"process {os.getpid()}"


def test_clocks_are_told(device):
    told = device.clocks.sample()
    assert told is not None
    assert 100 < told.sm_mhz < 5000


def test_the_doctor_finds_nothing_missing(device):
    assert not [finding for finding in gpu_findings() if finding.state == "missing"]


@pytest.fixture(scope="module")
def judges(device):
    with Judges() as found:
        yield found


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_candidate_passes(judges, name):
    honest = HONEST[name]
    verdict = judges.judged(honest.problem, honest.source)
    assert isinstance(verdict, Passed), verdict.reason


def test_an_honest_kernel_is_timed_by_events_that_a_chain_supports(judges):
    found = judges.judged(RELU, HONEST["triton_relu"].source).measurement
    check = found.on_device.check
    assert (found.clock, found.timing_clock, check.method) == ("gpu", "gpu_time", "chain")
    assert check.least_ms <= min(found.closest.candidate_ms)
    assert found.gpu_time_ms <= check.most_ms


def test_both_sides_compute_under_the_same_precision(judges):
    told = judges.judged(RELU, HONEST["triton_relu"].source).measurement.on_device.switches
    assert told["candidate"] == told["eager"]
    assert told["eager"]["matmul.allow_tf32"] is False


def test_torch_compile_is_a_baseline_on_the_device(device):
    settings = SETTINGS.model_copy(update={"compiled": ("default",)})
    verdict = judge(RELU, Candidate(source=HONEST["triton_relu"].source), settings)
    assert [pairing.baseline for pairing in verdict.measurement.pairings] == ["eager", "torch.compile default"]


def test_what_pytorch_takes_is_told_as_it_ships_under_the_policy_and_compiled(device):
    work = measuring(CONVOLVED, ("default",))
    verdict = judge(work.problem, work.candidate, JudgeSettings.model_validate(SETTINGS.model_dump() | work.overrides))
    event = MeasuredProblem(problem=CONVOLVED.name, verdict=verdict)
    told = baselines_of(View(problem=CONVOLVED.name, measured=event))
    named = {fact.partition(":")[0] for fact in told.times}
    assert {"eager", "eager as shipped", "torch.compile default"} <= named
    assert [words in fact for words, fact in zip(("to read", "a plain copy", "FLOP"), told.roofline, strict=True)] == [
        True
    ] * 3


def test_gradients_are_judged_on_the_device(device):
    problem = NORM.model_copy(update={"direction": "both"})
    verdict = judge(problem, Candidate(source=f"{NORM.source}\nModelNew = Model\n"), SETTINGS)
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.measurement.comparison != "faster"


@pytest.mark.skipif(tool_path("compute-sanitizer") is None, reason="no compute-sanitizer is installed")
def test_a_write_beyond_the_output_passes_unseen_and_is_caught_by_memcheck(device):
    candidate = Candidate(source=faulty.OVERRUN)
    assert isinstance(judge(faulty.PROBLEM, candidate, SETTINGS), Passed)
    verdict = judge(faulty.PROBLEM, candidate, SETTINGS.model_copy(update={"sanitize": True}))
    assert isinstance(verdict, Failed)
    assert verdict.stage == "check"
    first = verdict.reason.splitlines()[0]
    assert first.startswith("Invalid __global__ write of size")
    assert "in kernel overrun" in first


@pytest.mark.skipif(tool_path("compute-sanitizer") is None, reason="no compute-sanitizer is installed")
@pytest.mark.parametrize("name", ["triton_odd_sizes", "cuda_relu"])
def test_memcheck_finds_nothing_in_an_honest_candidate(device, name):
    honest = HONEST[name]
    verdict = judge(honest.problem, honest.candidate, SETTINGS.model_copy(update={"sanitize": True}))
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.evidence.look.memcheck.state == "clean"


@pytest.mark.skipif(tool_path("ncu") is None, reason="no ncu is installed")
def test_counters_of_an_honest_candidate_are_read_or_their_lack_is_explained(device):
    verdict = judge(RELU, HONEST["triton_relu"].candidate, SETTINGS.model_copy(update={"profile": True}))
    look = verdict.evidence.look
    assert "pointwise" in [one.name for one in look.kernels]
    assert [one.kernel for one in look.counters] == ["pointwise"] or "administrators" in look.obstacle


FAILING = [name for name, attack in ATTACKS.items() if attack.stage not in (SLOWER, NOT_FASTER)]


@pytest.mark.parametrize("name", FAILING)
def test_an_attack_fails_where_it_should(judges, name):
    attack = ATTACKS[name]
    verdict = judges.judged(PROBLEM, attack.candidate.source)
    assert isinstance(verdict, Failed)
    assert verdict.stage in attack.stage.split("|"), verdict.reason
    assert any(word in verdict.reason for word in attack.words.split("|")), verdict.reason


@pytest.mark.parametrize("name", ["wild_write", "endless_kernel", "memory_bomb", "freed_output"])
def test_the_candidate_after_an_attack_is_not_harmed(judges, name):
    judges.judged(PROBLEM, ATTACKS[name].candidate.source)
    verdict = judges.judged(RELU, HONEST["triton_relu"].source)
    assert isinstance(verdict, Passed), verdict.reason


def test_patched_events_do_not_fool_the_judges_clock(judges):
    found = judges.judged(PROBLEM, ATTACKS["patched_events"].candidate.source).measurement
    assert found.clock == "gpu"
    assert found.comparison == "slower"
    assert statistics.median(found.closest.candidate_ms) >= found.on_device.check.least_ms * (1 - 1e-9) > 1


def test_pinned_cache_lines_win_nothing(judges):
    found = judges.judged(PROBLEM, ATTACKS["persisting_l2"].candidate.source).measurement
    assert found.comparison != "faster"
