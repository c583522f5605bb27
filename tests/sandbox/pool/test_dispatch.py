"""Who gets what, and what becomes of lost work; on simulated devices, in simulated time."""

import asyncio
from types import SimpleNamespace

import pytest

from kernelwright.sandbox.pool.dispatcher import AHEAD, PATIENCE_S, TRIES, Dispatcher, Warmth
from kernelwright.sandbox.pool.executor import Answer, ExecutorError, JobError, Unjudged, Work
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.support.problems import tiny_problem
from tests.support.simulated import SimulatedExecutor, Times, run_simulated, search_many

TIMES = Times(build_s=10, judge_s=10, cold_s=5, latency_s=0)


def work(number, problem="p"):
    return Work(problem=tiny_problem(problem, name=problem), candidate=Candidate(source=f"{problem} {number}"))


def judge_many(executor, works, kind=None):
    async def go():
        async with Dispatcher(executor, kind) as dispatcher:
            found = await asyncio.gather(*(dispatcher.judge(one) for one in works), return_exceptions=True)
            return found, dispatcher.tally

    return run_simulated(go())


class Lossy(SimulatedExecutor):
    """Loses the worker of a candidate's stage for the first few times."""

    def lose(self, stage, source, times=1):
        left = [times]

        def losing(now, one):
            if now == stage and one.candidate.source == source and left[0]:
                left[0] -= 1
                return True
            return False

        self.losing = losing
        return self


def test_all_work_is_built_once_and_timed_once():
    works = [work(number, f"p{number % 3}") for number in range(30)]
    found, tally = judge_many(SimulatedExecutor(TIMES, 4, 2), works)
    assert all(one.verdict.reason == "simulated" for one in found)
    assert (tally.ended, tally.begun) == ({"build": 30, "time": 30}, {"build": 30, "time": 30})


@pytest.mark.parametrize("stage", ["build", "time"])
def test_a_lost_worker_costs_only_its_own_stage(stage):
    works = [work(number) for number in range(12)]
    found, tally = judge_many(Lossy(TIMES, 3, 3).lose(stage, "p 5"), works)
    assert len([one for one in found if hasattr(one, "verdict")]) == 12
    expected = {"build": 12, "time": 12}
    assert tally.ended == expected
    assert tally.begun == expected | {stage: 13}


def test_a_candidate_that_loses_every_worker_is_given_up_and_the_others_are_not():
    works = [work(number) for number in range(4)]
    found, tally = judge_many(Lossy(TIMES, 2, 2).lose("time", "p 1", times=99), works)
    assert [isinstance(one, Unjudged) for one in found] == [False, True, False, False]
    assert f"{TRIES} workers were lost" in str(found[1])
    assert tally.lost["time"] == TRIES


class Dying(SimulatedExecutor):
    async def revive(self, device):
        return False


def test_once_no_device_is_left_everybody_who_waits_is_told():
    executor = Dying(TIMES, 2, 2, losing=lambda stage, one: stage == "time")
    found, _ = judge_many(executor, [work(number) for number in range(6)])
    assert all(isinstance(one, ExecutorError | Unjudged) for one in found)
    assert any("no device is left" in str(one) for one in found)


class Broken(SimulatedExecutor):
    async def build(self, work):
        await asyncio.sleep(1)
        return Answer(error=JobError(message="the reference does not run", whole_problem=True))


def test_a_broken_problem_is_not_tried_again_for_each_candidate():
    found, tally = judge_many(Broken(TIMES, 1, 1), [work(number) for number in range(20)])
    assert all("reference" in str(one) for one in found)
    assert tally.begun["build"] == 1


def test_builds_and_timing_take_turns_where_they_use_the_same_cores():
    class Watched(SimulatedExecutor):
        building = timing = both = 0

        async def build(self, work):
            self.building += 1
            self.both += bool(self.timing)
            try:
                return await super().build(work)
            finally:
                self.building -= 1

        async def run(self, stage, work, product, device):
            self.timing += 1
            self.both += bool(self.building)
            try:
                return await super().run(stage, work, product, device)
            finally:
                self.timing -= 1

    executor = Watched(TIMES, 2, 2, alternates=True)
    judge_many(executor, [work(number) for number in range(9)])
    assert executor.both == 0


def test_where_they_take_turns_builds_are_made_in_one_go_while_there_is_room():
    class Noted(SimulatedExecutor):
        stages = ""

        async def build(self, work):
            self.stages += "b"
            return await super().build(work)

        async def run(self, stage, work, product, device):
            self.stages += "t"
            return await super().run(stage, work, product, device)

    executor = Noted(TIMES, 1, 2, alternates=True)
    judge_many(executor, [work(number) for number in range(16)])
    room = AHEAD * (2 + 1)
    assert executor.stages == "b" * room + "t" * room + "b" * (16 - room) + "t" * (16 - room)


@pytest.mark.parametrize(("kind", "said"), [(None, r"2 kinds.*big, small.*--kind"), ("huge", r"'huge'.* big, small")])
def test_of_two_kinds_one_has_to_be_chosen(kind, said):
    with pytest.raises(ExecutorError, match=said):
        judge_many(SimulatedExecutor(TIMES, 4, 1, kinds=("big", "small")), [], kind)


def test_work_for_a_kind_is_timed_on_devices_of_that_kind_alone():
    executor = SimulatedExecutor(TIMES, 4, 4, kinds=("big", "small"))
    found, _ = judge_many(executor, [work(number) for number in range(8)], kind="SMALL")
    assert {one.device.kind for one in found} == {"small"}
    assert {one.device.conditions.device for one in found} == {"small"}


def since(**problems):
    return {problem: [SimpleNamespace(since=start)] for problem, start in problems.items()}


@pytest.mark.parametrize(
    ("device", "waiting", "now", "taken"),
    [
        ("a", since(new=0.0, old=9.0), 10.0, "old"),
        ("b", since(old=0.0, new=9.0), 10.0, "new"),
        ("a", since(old=PATIENCE_S, new=0.0), PATIENCE_S + 1, "new"),
    ],
    ids=["one whose references it has", "one that fewest devices have", "what has waited too long"],
)
def test_a_device_takes_the_problem_that_costs_least_unless_one_has_waited_too_long(device, waiting, now, taken):
    warmth = Warmth()
    warmth.use("a", "old")
    assert warmth.problem_for(device, waiting, now) == taken


def test_of_idle_devices_one_that_has_the_problem_is_taken_and_a_lost_one_has_none():
    warmth = Warmth()
    warmth.use("b", "old")
    assert warmth.device_for("old", {"a": None, "b": None}) == "b"
    warmth.forget("b")
    assert warmth.device_for("old", {"a": None, "b": None}) == "a"


def test_64_devices_are_busy_where_there_is_enough_to_judge():
    executor = SimulatedExecutor(Times(), 64, 160)
    judged, busy = run_simulated(search_many(executor, problems=125, attempts=60, slots=4))
    assert judged == 7500
    assert busy > 0.9
