"""Lending, looking, poisoning and waiting on a real device, and every hostile and honest candidate on it."""

import os
import subprocess
import sys
import time

import pytest
import torch

from sandbox.gpu import driver
from sandbox.gpu.buffers import Lent, Shown, fetch, poison, words
from sandbox.gpu.doctor import gpu_findings
from sandbox.gpu.lock import holder
from sandbox.values import RawTensor
from tests.gpu.attacks import ATTACKS, NOT_FASTER, PROBLEM, SLOWER
from tests.gpu.harness import judged
from tests.gpu.honest import HONEST, RELU

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
BUSY = """
import sys, time, torch
x = torch.zeros(1, device="cuda")
print(1, flush=True)
end = time.time() + 60
while time.time() < end:
    torch.cuda._sleep(40_000_000)
    torch.cuda.synchronize()
"""

PLAIN = """
import torch
class ModelNew(torch.nn.Module):
    forward = staticmethod(torch.relu)
"""


def raw(*shape):
    return RawTensor.of(torch.randn(*shape))


def shown(tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    return Shown(dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr(), size)


@pytest.fixture
def lent(device):
    memory = Lent((raw(1000, 1000), raw(7)))
    yield memory
    memory.close()


def test_what_is_staged_is_not_shown_before_it_is_revealed(device, lent):
    device.calibrate(lent)
    lent.stage((raw(1000, 1000), raw(7)))
    assert lent.changed()
    device.prepare(lent)
    assert not lent.changed()


def test_a_device_that_nobody_uses_is_found_idle(device, lent):
    device.calibrate(lent)
    assert sum(device.prepare(lent).was_idle for _ in range(20)) >= 18


def test_a_device_that_another_process_uses_is_found_busy(device, lent):
    device.calibrate(lent)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        time.sleep(0.5)
        idle = [device.prepare(lent).was_idle for _ in range(20)]
        other.kill()
    assert sum(idle) <= 10


def test_a_glance_sees_what_lies_there(device):
    tensor = torch.randn(1_000_003, device="cuda")
    torch.cuda.synchronize()
    glance = device.glancer.look(shown(tensor))
    values, data = fetch(shown(tensor))
    assert glance.agrees(data)
    assert torch.equal(values.tensor(), tensor.cpu())


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
        assert (words(address, 2**21).view(torch.int32) == 5).all()
    finally:
        driver.free(address)


def test_the_device_is_locked_by_this_process(device):
    assert holder(device.uuid) == f"process {os.getpid()}"


def test_clocks_are_told(device):
    told = device.clocks.sample()
    assert told is not None
    assert 100 < told.sm_mhz < 5000


def test_the_doctor_finds_nothing_missing(device):
    assert not [finding for finding in gpu_findings() if finding.state == "missing"]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_candidate_passes(device, name):
    honest = HONEST[name]
    came = judged(device, honest.problem, honest.source, build=name.startswith("cuda"))
    assert came.stage == "passed", came.reason


def test_an_honest_call_is_seen_alike_by_both_clocks(device):
    came = judged(device, RELU, HONEST["triton_relu"].source, calls=12)
    late = [call for call in came.calls[3:] if not call.mapped_anew]
    assert late, came.reason
    for call in late:
        assert call.device_ms is not None
        assert call.device_ms <= call.milliseconds <= call.device_ms + 2


FAILING = [name for name, attack in ATTACKS.items() if attack.stage not in (SLOWER, NOT_FASTER)]


@pytest.mark.parametrize("name", FAILING)
def test_an_attack_fails_where_it_should(device, name):
    attack = ATTACKS[name]
    came = judged(device, PROBLEM, attack.candidate.source)
    assert came.stage in attack.stage.split("|"), came.reason
    assert any(word in came.reason for word in attack.words.split("|")), came.reason


@pytest.mark.parametrize("name", ["wild_write", "endless_kernel", "memory_bomb", "freed_output"])
def test_the_candidate_after_an_attack_is_not_harmed(device, name):
    judged(device, PROBLEM, ATTACKS[name].candidate.source)
    came = judged(device, RELU, HONEST["triton_relu"].source)
    assert came.stage == "passed", came.reason


def test_patched_events_do_not_fool_the_judges_clock(device):
    came = judged(device, PROBLEM, ATTACKS["patched_events"].candidate.source)
    assert came.stage == "passed", came.reason
    assert min(call.milliseconds for call in came.calls) > 1
    assert max(call.device_ms for call in came.calls) < 0.1


def test_pinned_cache_lines_win_nothing(device):
    plain = judged(device, PROBLEM, PLAIN, calls=30)
    pinned = judged(device, PROBLEM, ATTACKS["persisting_l2"].candidate.source, calls=30)
    assert plain.stage == pinned.stage == "passed", plain.reason + pinned.reason
    fastest = [min(call.device_ms for call in came.calls) for came in (plain, pinned)]
    assert fastest[1] > 0.9 * fastest[0]
