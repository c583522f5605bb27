"""Devices, and the local executor with the real judge on declared ones: verdicts, lost workers, kinds."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernelwright.sandbox.pool.executor import ExecutorError, LocalExecutor, ordinals, settings_on, shared_cores
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.executors import QUICK, batch, declared, judged, outcome, right, wrong

slow = pytest.mark.slow
TWO = sorted(os.sched_getaffinity(0))[:2]
needs_two_cores = pytest.mark.skipif(len(TWO) < 2, reason="two declared devices need two cores")


def test_the_judges_of_several_gpus_have_cores_of_their_own_or_all_where_there_are_fewer():
    assert shared_cores(tuple(range(8)), 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert shared_cores((0, 1), 4) == [(0, 1)] * 4


def test_a_worker_keeps_to_the_cores_that_were_chosen_with_no_more_threads_than_those():
    first = min(os.sched_getaffinity(0))
    settings = settings_on(JudgeSettings(min_pairs=4, threads=9), (first,))
    assert (settings.cores, settings.threads, settings.min_pairs) == ((first,), 1, 4)
    assert settings.model_fields_set == {"cores", "threads", "min_pairs"}, "all else is decided where it runs"


def test_of_several_gpus_the_first_ones_are_taken_or_the_one_that_is_named():
    assert list(ordinals(JudgeSettings(device="cuda"), None, 4)) == [0, 1, 2, 3]
    assert list(ordinals(JudgeSettings(device="cuda"), 2, 4)) == [0, 1]
    assert list(ordinals(JudgeSettings(device="cuda:2"), None, 4)) == [2]


def test_one_gpu_by_its_number_is_not_several_and_one_beyond_those_there_are_is_the_machine_s_lack():
    with pytest.raises(ExecutorError, match="cuda:2 is one device"):
        ordinals(JudgeSettings(device="cuda:2"), 2, 4)
    with pytest.raises(MachineError, match=r"no cuda:4: .*4 CUDA"):
        ordinals(JudgeSettings(device="cuda:4"), None, 4)


def test_a_worker_sees_one_gpu_as_the_first():
    assert settings_on(JudgeSettings(device="cuda:2"), (0,)).device == "cuda"


def executor(*kinds):
    return LocalExecutor(QUICK, 2, declared(kinds, TWO))


@slow
@pytest.mark.long
@needs_two_cores
def test_two_devices_give_the_verdicts_of_one():
    one, _ = asyncio.run(judged(executor("fake"), batch()))
    two, tally = asyncio.run(judged(executor("fake", "fake"), batch()))
    assert [outcome(found.verdict) for found in two] == [outcome(found.verdict) for found in one]
    assert len(tally.busy_s) == 2


@slow
@needs_two_cores
@pytest.mark.long
def test_a_supervisor_killed_in_mid_batch_loses_nothing_and_repeats_only_its_own_work():
    works = [right(number) for number in range(6)]

    async def kill_one(dispatcher):
        while not dispatcher.tally.ended["time"]:
            await asyncio.sleep(0.02)
        named = dispatcher.executor.pids
        pid = next(pid for name, pid in named.items() if pid and not name.startswith("builds"))
        os.kill(pid, signal.SIGKILL)

    found, tally = asyncio.run(judged(executor("fake", "fake"), works, during=kill_one))
    assert [outcome(one.verdict) for one in found] == ["passed"] * 6
    assert tally.ended == Counter(build=6, time=6)
    assert tally.begun["build"] == 6
    assert tally.begun["time"] == 6 + tally.lost["time"] <= 7


@slow
@pytest.mark.long
@needs_two_cores
def test_a_build_pool_killed_in_mid_batch_loses_nothing():
    works = [right(number) for number in range(4)]

    async def kill_pool(dispatcher):
        while (pid := dispatcher.executor.pids["builds/0"]) is None:
            await asyncio.sleep(0.02)
        os.kill(pid, signal.SIGKILL)

    found, tally = asyncio.run(judged(executor("fake"), works, during=kill_pool))
    assert [outcome(one.verdict) for one in found] == ["passed"] * 4
    assert tally.ended["build"] == 4
    assert tally.lost["build"] >= 1


@slow
@pytest.mark.long
@needs_two_cores
def test_results_belong_to_the_kind_that_was_asked_for():
    found, _ = asyncio.run(judged(executor("small", "big"), [right(1), wrong(1)], kind="big"))
    assert {one.device.conditions.device for one in found} == {"big"}


@pytest.fixture(scope="module")
def checked():
    """The verdicts of checks of a right and of a wrong candidate, and the processes that came to them, closed since."""
    used = executor("fake")

    async def check(dispatcher):
        found = [(await dispatcher.judge(work, "check")).verdict for work in (right(7), wrong(7))]
        told.append((found, list(used.pids.values())))

    told = []
    asyncio.run(judged(used, [], during=check))
    return told[0]


@slow
def test_processes_start_with_the_executor_where_that_was_asked_for():
    async def started(at_once):
        executor = LocalExecutor(QUICK, 2, declared(["fake"], TWO), at_once)
        await executor.open()
        pids = list(executor.pids.values())
        await executor.close()
        return pids

    assert all(asyncio.run(started(True))) and not any(asyncio.run(started(False)))


@slow
def test_one_process_builds_and_times_where_the_processor_is_one_device():
    async def processes():
        whole = LocalExecutor(JudgeSettings(), builders=2)
        await whole.open()
        return set(whole.pids)

    assert asyncio.run(processes()) == {"local/0"}


@slow
@pytest.mark.parametrize("module", ["kernelwright.sandbox.pool.worker", "kernelwright.sandbox.pool.ray"])
def test_a_process_becomes_a_judge_before_it_imports_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@slow
def test_a_check_tells_right_from_wrong_with_few_pairs_and_no_process_is_left_of_it(checked):
    found, pids = checked
    assert [outcome(one) == "passed" for one in found] == [True, False]
    assert len(found[0].measurement.closest.candidate_ms) == 4
    assert len(pids) == 2 and all(pids)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
