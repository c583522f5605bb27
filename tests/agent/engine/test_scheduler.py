"""Many problems in one run, simulated: unspent attempts flow, budgets of the run hold, the judge is kept busy."""

import asyncio

import pytest

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.config import Budget, SearchConfig
from kernelwright.agent.engine import Parts
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.providers import AnswerPending
from kernelwright.agent.providers.batch import BatchProvider
from kernelwright.agent.providers.simulated import Assumptions, SimulatedEvaluator, SimulatedProvider
from kernelwright.agent.replay import replay
from kernelwright.agent.scheduler import Scheduler, views_of
from kernelwright.agent.strategies import load_strategy
from kernelwright.problems import Problem
from kernelwright.prompts import TargetVersions, cpu_sheet
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere
from tests.support.problems import stateless
from tests.support.simulated import run_simulated

pytestmark = pytest.mark.slow


SOFTMAX = stateless("torch.softmax(x, dim=-1)", "torch.randn(8, 8)")
CONFIG = SearchConfig(model="m", attempts=6, drafts=2, patience=3, problems_at_once=2, runner_up=0)
PROBLEMS = [
    Problem(name=f"made_up_{number}", title="Softmax", family="simulated", size="cpu", source=SOFTMAX)
    for number in range(4)
]


def parts_of(log, config, provider=None, evaluator=None):
    return Parts(
        strategy=load_strategy(config.strategy, config),
        provider=provider or SimulatedProvider(),
        evaluator=evaluator or SimulatedEvaluator(seconds=2.0),
        log=log,
        config=config,
        brief_for=BriefMaker(cpu_sheet("simulated", 2, [], {}), TargetVersions(), log),
    )


def ran(folder, config, problems=PROBLEMS, **changes):
    with RunLog.create(folder, problems, Setting(config={}, device="simulated", versions={})) as log:
        parts = parts_of(log, config, **changes)
        run_simulated(Scheduler(log, config, lambda problem: parts).search(problems))
        return views_of(log), list(log.events())


class Stubborn(SimulatedProvider):
    """Nothing that it writes for the first problem is ever faster, so patience ends there early."""

    async def complete(self, request, ask, prompt):
        dull = Assumptions(draft_right=0.99, improve_right=0.99, helps=0.001, execution=0.0, difficulty_spread=0.0)
        endless = (10.0, 11.0)
        lively = Assumptions(draft_right=0.99, improve_right=0.99, helps=0.99, difficulty_spread=0.0, room=endless)
        self.assumptions = dull if ask.problem == "made_up_0" else lively
        return await super().complete(request, ask, prompt)


@pytest.mark.parametrize("share", [True, False])
def test_attempts_that_are_left_go_to_problems_that_ran_out_where_they_are_shared(tmp_path, share):
    config = CONFIG.model_copy(update={"attempts": 12, "patience": 5, "share": share})
    views, events = ran(tmp_path / "run", config, provider=Stubborn(latency_s=(1.0, 2.0)))
    spent = [view.spent for view in views]
    assert all(view.attempts and view.stopped for view in views)
    assert spent[0] < 12 and (max(spent) > 12) == share
    assert sum(spent) <= 4 * 12, "no more is spent than all problems were given"
    grants = [event.body for event in events if event.kind == "granted"]
    assert bool(grants) == share
    assert all("expected gain" in grant.reason for grant in grants)


def test_a_budget_of_the_run_stops_all_problems(tmp_path):
    config = CONFIG.model_copy(update={"batch": Budget(tokens=40_000)})
    views, *_ = ran(tmp_path / "run", config)
    (stopped,) = {view.stopped for view in views}
    assert "budget of the run" in stopped and "40000 tokens" in stopped


class Clocked(SimulatedEvaluator):
    async def evaluate(self, *asked, **options):
        verdict = await super().evaluate(*asked, **options)
        self.ended_s = asyncio.get_running_loop().time()
        return verdict


def test_the_judge_is_kept_busy_and_every_attempt_is_on_disk(tmp_path):
    config = SearchConfig(model="m", attempts=6, slots=2, problems_at_once=16, patience=100)
    evaluator = Clocked(slots=4)
    problems = [PROBLEMS[0].model_copy(update={"name": f"made_up_{number}"}) for number in range(24)]
    _, events = ran(tmp_path / "run", config, problems, evaluator=evaluator)
    assert [event.kind for event in events].count("asked") == 24 * 6
    assert evaluator.busy_s / (4 * evaluator.ended_s) > 0.85


def test_a_problem_that_waits_for_its_answers_holds_up_no_other(tmp_path):
    config = CONFIG.model_copy(update={"problems_at_once": 1})
    with pytest.raises(AnswerPending):
        ran(tmp_path / "run", config, provider=BatchProvider())
    with RunLog.open(tmp_path / "run") as log:
        assert [len(view.pending) for view in views_of(log)] == [1, 1, 1, 1]


class Broken(SimulatedProvider):
    """Fails for two problems at once, with a passing wait for a third."""

    async def complete(self, request, ask, prompt):
        if ask.problem == "made_up_0":
            raise AnswerPending("later")
        raise NotImplementedError(ask.problem)


def test_an_error_goes_before_a_wait(tmp_path):
    with pytest.raises(NotImplementedError):
        ran(tmp_path / "run", CONFIG.model_copy(update={"problems_at_once": 4}), provider=Broken())


class Refusing(SimulatedEvaluator):
    def __init__(self, errors):
        super().__init__(seconds=2.0)
        self.errors = errors

    async def evaluate(self, problem, candidate, **asked):
        if problem.name in self.errors:
            raise self.errors[problem.name]
        return await super().evaluate(problem, candidate, **asked)


TWO_REFUSED = {
    "made_up_1": BrokenProblem("the reference does not run; correct the problem file"),
    "made_up_2": UnsupportedHere("it needs more memory than there is; use a smaller size"),
}


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_problem_that_can_not_be_judged_ends_its_own_search_alone(tmp_path, at_once):
    config = CONFIG.model_copy(update={"problems_at_once": at_once})
    views, events = ran(tmp_path / "run", config, evaluator=Refusing(TWO_REFUSED))
    assert [view.fault for view in views] == [None, "broken", "unsupported", None]
    assert [view.stopped for view in views][1:3] == [str(error) for error in TWO_REFUSED.values()]
    assert [bool(view.best) for view in views] == [True, False, False, True]
    assert [event.body.fault for event in events if event.kind == "stopped"].count(None) == 2


def test_what_could_not_be_judged_replays_and_is_tried_again_by_a_later_search(tmp_path):
    ran(tmp_path / "run", CONFIG, evaluator=Refusing(TWO_REFUSED))
    with RunLog.open(tmp_path / "run") as log:
        assert replay(log, tmp_path / "again").digest == log.digest()
        parts = parts_of(log, CONFIG, evaluator=Refusing({"made_up_2": TWO_REFUSED["made_up_2"]}))
        run_simulated(Scheduler(log, CONFIG, lambda problem: parts).search(PROBLEMS))
        views = views_of(log)
    assert [view.fault for view in views] == [None, None, "unsupported", None]
    assert any(attempt.verdict is not None for attempt in views[1].attempts)


def lacking(*names):
    return Refusing({name: MachineError(f"no memory can be lent for {name}; end what uses it") for name in names})


def test_what_the_machine_lacks_for_one_problem_ends_no_other(tmp_path):
    views, *_ = ran(tmp_path / "run", CONFIG, evaluator=lacking("made_up_3"))
    assert [view.fault for view in views] == [None, None, None, "machine"]


def test_a_machine_that_can_judge_nothing_ends_the_run(tmp_path):
    one_by_one = CONFIG.model_copy(update={"problems_at_once": 1})
    with pytest.raises(MachineError, match="for made_up_2"):
        ran(tmp_path / "run", one_by_one, evaluator=lacking(*(problem.name for problem in PROBLEMS)))
    with RunLog.open(tmp_path / "run") as log:
        assert [view.fault for view in views_of(log)] == ["machine"] * 3 + [None]


def test_a_run_without_any_verdict_for_want_of_the_machine_is_the_machines(tmp_path):
    with pytest.raises(MachineError, match="for made_up_0"):
        ran(tmp_path / "run", CONFIG, problems=PROBLEMS[:1], evaluator=lacking("made_up_0"))
