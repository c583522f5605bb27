"""The search's view of an executor."""

import pytest

from kernelwright.agent.scheduler import ExecutorEvaluator, evaluating
from kernelwright.problems import Problem
from kernelwright.sandbox.pool.client import JobSettings
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Answer, JobError
from kernelwright.sandbox.pool.judge_pool import Where
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Measurement, Pairing, Passed
from tests.support.executors import QUICK, SUM
from tests.support.simulated import VERDICT, SimulatedExecutor, Times, run_simulated

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


def test_the_engine_gets_the_verdict_and_no_time_of_a_candidate_that_fails_a_check():
    assert evaluated(Answer(verdict=VERDICT)) == VERDICT
    assert evaluated(Answer(verdict=VERDICT), screen=True) == [None, None, None]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"whole_problem": True}, BrokenProblem),
        ({"whole_problem": False}, MachineError),
        ({"whole_problem": True, "unsupported": True}, UnsupportedProblem),
    ],
)
def test_the_engine_hears_whether_the_problem_or_the_machine_is_at_fault(fault, error):
    with pytest.raises(error, match="what is wrong"):
        evaluated(Answer(error=JobError(message="what is wrong", **fault)))


class Noting(Saying):
    """Keeps what it was asked, and can judge no problem while `broken`."""

    def __init__(self, broken=False):
        super().__init__(Times(), 1, 1)
        self.asked, self.released = [], []
        if broken:
            self.answer = Answer(error=JobError(message="too large", whole_problem=True, unsupported=True))

    async def run(self, stage, work, product, device):
        self.asked.append((stage, work))
        return await super().run(stage, work, product, device)

    def release(self, problem):
        self.released.append(problem)


def measured(executor, problem=PROBLEM, compiled=(), after=None, kept=None):
    async def go():
        async with Dispatcher(executor) as dispatcher:
            evaluator = ExecutorEvaluator(dispatcher, compiled, kept)
            try:
                return await evaluator.measure(problem)
            finally:
                if after is not None:
                    await after(evaluator)

    return run_simulated(go())


def test_pytorch_is_measured_by_one_screening_of_the_reference_whatever_candidates_may_use():
    executor = Noting()
    assert measured(executor, PROBLEM.model_copy(update={"operators": "custom-only"})) == VERDICT
    ((stage, work),) = executor.asked
    assert (stage, work.effort, work.overrides) == ("time", "screen", {})
    assert work.candidate.source == "p\n\nModelNew = Model\n"
    assert work.problem == PROBLEM  # whose policy is `any`
    assert executor.released == [work.problem]


def test_where_torch_compile_is_a_baseline_it_is_measured_too_and_as_briefly():
    executor = Noting()
    measured(executor, compiled=("default", "max-autotune"))
    ((_, work),) = executor.asked
    assert JobSettings.model_validate(work.overrides).compiled == ("default", "max-autotune"), "a service takes it too"
    settings = JudgeSettings.model_validate(JudgeSettings().model_dump() | work.overrides)
    settings = settings.at(settings.effort)
    assert settings.compiled == ("default", "max-autotune")
    screening = JudgeSettings().at("screen")
    brief = ("worker_pairs", "min_pairs", "max_pairs", "sanitize", "profile")
    assert [getattr(settings, name) for name in brief] == [getattr(screening, name) for name in brief]


def test_what_was_measured_is_kept_where_a_folder_is_named_under_the_same_conditions(tmp_path):
    executor = Noting()
    pairing = Pairing(baseline="eager", candidate_ms=(1.0,), baseline_ms=(2.0,))
    right = Passed(measurement=Measurement(pairings=(pairing,), threads=1), evidence=VERDICT.evidence)
    executor.answer = Answer(verdict=right)
    kept = Store("measured", tmp_path)
    assert [measured(executor, kept=kept) for _ in range(2)] == [right, right]
    assert len(executor.asked) == 1
    measured(executor, PROBLEM.model_copy(update={"precision": "tf32"}), kept=kept)
    measured(executor)
    assert len(executor.asked) == 3


def test_a_reference_that_can_not_be_measured_does_not_keep_candidates_from_being_judged():
    executor = Noting(broken=True)

    async def judge_one(evaluator):
        executor.answer = Answer(verdict=VERDICT)
        assert await evaluator.evaluate(PROBLEM, CANDIDATES[0]) == VERDICT

    with pytest.raises(UnsupportedProblem, match="too large"):
        measured(executor, after=judge_one)


@pytest.mark.slow
async def test_the_workers_of_this_machine_measure_the_reference():
    async with evaluating(Where(), QUICK) as evaluator:
        verdict = await evaluator.measure(SUM)
    assert isinstance(verdict, Passed)
    assert (list(verdict.measurement.baselines_ms), verdict.evidence.effort) == (["eager"], "screen")
