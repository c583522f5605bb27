"""What the GPU's part decides without a device: places to look at, clocks that count, locks, reports of tools."""

import os
import subprocess
import sys

import pytest
import torch

from kernelwright.sandbox.calls.gpu_buffers import POISON_WORD, PROBES, Allocations, OutputSample, comb
from kernelwright.sandbox.calls.sessions import Prepared
from kernelwright.sandbox.clocks import ClockSample, steady
from kernelwright.sandbox.locks import DeviceLock, WaitLimit, device_holder, device_path
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, alone
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright_child.models import fix_precision, precision_switches

SIZES = [0, 3, 4, 7, 4 * PROBES - 4, 4 * PROBES, 4 * PROBES + 4, 10**6 + 3, 2**31]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("draw", [0, 1, 12345, 2**31 - 1])
def test_a_glance_stays_inside_the_output(size, draw):
    first, pitch, rows = comb(size, draw)
    assert first >= 0
    assert first % 4 == 0
    assert rows == min(PROBES, size // 4)
    assert not rows or first + (rows - 1) * pitch + 4 <= size


@pytest.mark.parametrize("size", [4 * PROBES + 4, 10**6 + 3, 5_000_000])
def test_every_word_of_an_output_may_be_looked_at(size):
    seen = set()
    _, pitch, rows = comb(size, 0)
    for draw in range(size // 4):
        first = comb(size, draw)[0]
        if first in seen:
            break
        seen.add(first)
    words = {first + row * pitch for first in seen for row in range(rows)}
    assert words == set(range(0, size // 4 * 4, 4))


def test_a_glance_tells_an_output_that_was_changed_where_it_looked():
    data = torch.arange(192, 256, dtype=torch.uint8)
    whole = bytes(data.tolist())
    sample = OutputSample(4, 16, tuple(int.from_bytes(whole[i : i + 4], "little") for i in (4, 20, 36, 52)))
    assert sample.agrees(data)
    data[37] ^= 1
    assert not sample.agrees(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_poison_is_no_number_in_any_floating_dtype(dtype):
    words = torch.tensor([POISON_WORD, POISON_WORD], dtype=torch.int32)
    assert words.view(dtype).isnan().all()


CLAIM = {"dtype": "float32", "shape": [2, 3], "stride": [3, 1], "handle": "ab" * 64, "offset": 0}
BAD = {
    "no handle's form": {"handle": "../etc"},
    "a negative size": {"shape": [-2, 3]},
    "a negative stride": {"stride": [-3, 1]},
    "a negative offset": {"offset": -4},
    "no dtype": {"dtype": "Tensor"},
    "another rank": {"stride": [1]},
    "words for numbers": {"shape": ["2", "3"]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_claim_that_makes_no_sense_is_refused_before_anything_is_mapped(name):
    with pytest.raises(MemoryReadError, match="described an output"):
        Allocations().find(CLAIM | BAD[name])


def test_an_output_in_memory_that_was_not_lent_is_refused():
    with pytest.raises(MemoryReadError, match="not shared"):
        Allocations().find(CLAIM | {"handle": "shared"})


def test_an_output_without_elements_needs_no_memory():
    shown = Allocations().find(CLAIM | {"shape": [0, 3], "handle": ""})
    assert shown.bytes == 0


def sample(mhz, reasons=0):
    return ClockSample(sm_mhz=mhz, memory_mhz=3000, reasons=reasons)


def test_samples_at_a_low_clock_do_not_count():
    assert steady([sample(1980), sample(1965), sample(1200), sample(1980)]) == [True, True, False, True]


def test_samples_under_thermal_slowdown_do_not_count_and_those_under_a_power_cap_do():
    assert steady([sample(1980, 0x20), sample(1980, 0x4)]) == [False, True]


def test_without_nvml_all_samples_count():
    assert steady([None, None]) == [True, True]


def test_reasons_are_told_by_name():
    assert sample(1000, 0x4 | 0x40).words == ("power cap", "thermal slowdown by hardware")


def test_a_device_that_took_twice_as_long_was_not_idle():
    assert not Prepared(taken_ms=0.6, idle_ms=0.3).was_idle
    assert Prepared(taken_ms=0.32, idle_ms=0.3).was_idle


def test_a_device_that_did_not_answer_at_once_was_not_idle():
    assert not Prepared(taken_ms=0.3, idle_ms=0.3, answer_ms=1.5).was_idle


def test_threads_that_torch_has_already_start_no_idle_ones_on_the_core_of_the_first():
    code = """
import os, torch
from kernelwright_child.gpu_worker import use_threads
has, before = torch.get_num_threads(), len(os.listdir("/proc/self/task"))
for count in (has, has + 2):
    use_threads(count)
    print(torch.get_num_threads() - has, len(os.listdir("/proc/self/task")) > before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 False", "2 True"]


UUID = f"GPU-test-{os.getpid()}"


@pytest.fixture
def lock_file():
    yield device_path(UUID)
    device_path(UUID).unlink(missing_ok=True)


def test_a_second_judge_waits_for_the_device_and_is_told_who_has_it(lock_file):
    first = DeviceLock(UUID, WaitLimit(0))
    assert device_holder(UUID) == f"process {os.getpid()}"
    with pytest.raises(MachineError, match=f"taken by process {os.getpid()}"):
        DeviceLock(UUID, WaitLimit(0))
    first.close()
    assert device_holder(UUID) is None
    DeviceLock(UUID, WaitLimit(0)).close()


def test_a_judge_that_is_killed_gives_the_device_back(lock_file):
    code = "import time; from kernelwright.sandbox.locks import DeviceLock, WaitLimit; "
    code += f"held = DeviceLock({UUID!r}, WaitLimit(0)); "
    code += "print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert device_holder(UUID) == f"process {other.pid}"
        other.kill()
        other.wait()
    DeviceLock(UUID, WaitLimit(5)).close()


def test_a_device_that_nobody_ever_took_has_no_device_holder():
    assert device_holder("GPU-never") is None


def test_the_result_of_one_call_of_several_has_only_its_own_tensors():
    tensors = tuple(RawTensor("float32", (1,), bytearray([number] * 4)) for number in range(3))
    both = Values({"l": [{"t": 0}, {"l": [{"t": 1}, {"v": 3}, {"t": 2}]}]}, tensors)
    second = alone(both.tree["l"][1], both)
    assert second.tree == {"l": [{"t": 0}, {"v": 3}, {"t": 1}]}
    assert second.tensors == tensors[1:]


@pytest.mark.parametrize(("policy", "allowed"), [("strict", False), ("tf32", True), ("half", True)])
def test_the_precision_policy_sets_the_same_switches_on_every_side(policy, allowed):
    try:
        switches = fix_precision(policy)
        assert switches == precision_switches()
        assert switches["matmul.allow_tf32"] is switches["cudnn.allow_tf32"] is allowed
    finally:
        fix_precision("strict")
