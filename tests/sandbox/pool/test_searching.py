"""The search's view of an executor, and what a run remembers of its choice."""

import pytest

from bench.simulated.clock import run_simulated
from bench.simulated.executor import VERDICT, SimulatedExecutor, Times
from kernelwright.agent.engine.evaluator import ExecutorEvaluator
from kernelwright.problems import Problem
from kernelwright.sandbox.machine.identity import processor_name
from kernelwright.sandbox.pool.dispatch import Dispatcher
from kernelwright.sandbox.pool.front.executor_choice import ExecutorChoice, executor_for, settled
from kernelwright.sandbox.pool.protocol import Answer, ExecutorError
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate

PROBLEM = Problem(name="p", title="", family="simulated", size="cpu", source="p")
CANDIDATES = [Candidate(source=str(number)) for number in range(3)]


class Saying(SimulatedExecutor):
    """Has one answer to every stage on a device."""

    answer = Answer(verdict=VERDICT)

    async def run(self, stage, work, product, device):
        await super().run(stage, work, product, device)
        return self.answer


def evaluated(answer, screen=False):
    executor = Saying(Times(), 1, 1)
    executor.answer = answer

    async def go():
        async with Dispatcher(executor) as dispatcher:
            evaluator = ExecutorEvaluator(dispatcher)
            if screen:
                return await evaluator.screen(PROBLEM, CANDIDATES)
            return await evaluator.evaluate(PROBLEM, CANDIDATES[0])

    return run_simulated(go())


def test_the_engine_gets_the_verdict():
    assert evaluated(Answer(verdict=VERDICT)) == VERDICT


@pytest.mark.parametrize(("whole", "error"), [(True, BrokenProblem), (False, MachineError)])
def test_the_engine_hears_whether_the_problem_or_the_machine_is_at_fault(whole, error):
    with pytest.raises(error, match="no compiler"):
        evaluated(Answer(trouble="no compiler", broken_problem=whole))


def test_the_engine_hears_that_a_sound_problem_asks_for_too_much():
    with pytest.raises(UnsupportedProblem, match="too large"):
        evaluated(Answer(trouble="too large", broken_problem=True, unsupported=True))


def test_a_candidate_that_fails_a_check_has_no_time():
    assert evaluated(Answer(verdict=VERDICT), screen=True) == [None, None, None]


def test_a_run_remembers_the_kind_of_device_that_it_began_on():
    assert settled(ExecutorChoice(devices=1), Settings()).kind == processor_name()


def test_what_this_process_judges_on_by_itself_is_left_open():
    assert settled(ExecutorChoice(), Settings()) == ExecutorChoice()


def test_an_address_without_ray_is_a_mistake():
    with pytest.raises(ExecutorError, match="--executor ray"):
        executor_for(ExecutorChoice(address="head:6379"), Settings())


def test_more_devices_than_cores_are_a_mistake():
    with pytest.raises(ExecutorError, match=r"100000 devices .* ask for fewer"):
        settled(ExecutorChoice(devices=100_000), Settings())
