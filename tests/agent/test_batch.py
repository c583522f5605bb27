"""Many problems in one run, simulated: unspent attempts flow, budgets of the run hold, the judge is kept busy."""

import pytest

from agent.batch import Batch, views_of
from agent.briefs import BriefMaker
from agent.config import Budget, SearchConfig
from agent.engine import Parts
from agent.log import RunLog, Setting
from agent.providers.batchfile import Deferred
from agent.providers.protocol import Waiting
from agent.simulation.clock import run_simulated
from agent.simulation.landscape import Assumptions
from agent.simulation.many import SOURCE, run_many
from agent.simulation.parts import SimulatedEvaluator, SimulatedProvider
from agent.strategies import load_strategy
from problems import Problem
from prompts import TargetVersions, cpu_sheet

CONFIG = SearchConfig(model="m", attempts=6, drafts=2, patience=3, problems_at_once=2, runner_up=0)
PROBLEMS = [
    Problem(name=f"made_up_{number}", title="Softmax", family="simulated", size="cpu", source=SOURCE)
    for number in range(4)
]


def ran(folder, config, problems=PROBLEMS, **changes):
    with RunLog.create(folder, problems, Setting(config={}, device="simulated", versions={})) as log:
        parts = Parts(
            strategy=load_strategy(config.strategy, config),
            provider=changes.get("provider") or SimulatedProvider(),
            evaluator=SimulatedEvaluator(seconds=2.0),
            log=log,
            config=config,
            brief_for=BriefMaker(cpu_sheet("simulated", 2, [], {}), TargetVersions(), log),
        )
        batch = Batch(log, config, lambda problem: parts)
        run_simulated(batch.search(problems))
        return views_of(log), list(log.events()), batch


def test_all_problems_are_searched(tmp_path):
    views, _, _ = ran(tmp_path / "run", CONFIG)
    assert all(view.attempts for view in views)
    assert all(view.stopped for view in views)


class Stubborn(SimulatedProvider):
    """Nothing that it writes for the first problem is ever faster, so patience ends there early."""

    async def complete(self, request, ask, prompt):
        dull = Assumptions(draft_right=0.99, improve_right=0.99, helps=0.001, execution=0.0, difficulty_spread=0.0)
        endless = (10.0, 11.0)
        lively = Assumptions(draft_right=0.99, improve_right=0.99, helps=0.99, difficulty_spread=0.0, room=endless)
        self.assumptions = dull if ask.problem == "made_up_0" else lively
        return await super().complete(request, ask, prompt)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    config = CONFIG.model_copy(update={"attempts": 12, "patience": 5})
    return ran(tmp_path_factory.mktemp("uneven") / "run", config, provider=Stubborn(latency_s=(1.0, 2.0)))


def test_attempts_that_are_left_go_to_problems_that_ran_out(uneven):
    views, _, _ = uneven
    assert views[0].spent < 12 < max(view.spent for view in views)


def test_no_more_is_spent_than_all_problems_were_given(uneven):
    views, _, _ = uneven
    assert sum(view.spent for view in views) <= 4 * 12


def test_each_grant_is_in_the_log_with_its_reason(uneven):
    _, events, _ = uneven
    grants = [event.body for event in events if event.kind == "granted"]
    assert grants
    assert all("expected gain" in grant.reason for grant in grants)


def test_sharing_can_be_switched_off(tmp_path):
    config = CONFIG.model_copy(update={"attempts": 12, "patience": 5, "share": False})
    views, *_ = ran(tmp_path / "run", config, provider=Stubborn(latency_s=(1.0, 2.0)))
    assert max(view.spent for view in views) <= 12


def test_a_budget_of_the_run_stops_all_problems(tmp_path):
    config = CONFIG.model_copy(update={"batch": Budget(tokens=40_000)})
    views, *_ = ran(tmp_path / "run", config)
    assert {view.stopped for view in views} == {"the budget of the run of 40000 tokens is used up"}


def test_the_judge_is_kept_busy_and_every_attempt_is_on_disk(tmp_path):
    config = SearchConfig(model="m", attempts=6, slots=2, problems_at_once=16, patience=100)
    load = run_many(tmp_path / "run", 24, config)
    assert load.attempts == 24 * 6
    assert load.busy > 0.85


def test_a_problem_that_waits_for_its_answers_holds_up_no_other(tmp_path):
    config = CONFIG.model_copy(update={"problems_at_once": 1})
    with pytest.raises(Waiting):
        ran(tmp_path / "run", config, provider=Deferred())
    with RunLog.open(tmp_path / "run") as log:
        assert [len(view.pending) for view in views_of(log)] == [1, 1, 1, 1]


class Broken(SimulatedProvider):
    """Fails for two problems at once, with a passing wait for a third."""

    async def complete(self, request, ask, prompt):
        if ask.problem == "made_up_0":
            raise Waiting("later")
        raise NotImplementedError(ask.problem)


def test_an_error_goes_before_a_wait(tmp_path):
    with pytest.raises(NotImplementedError):
        ran(tmp_path / "run", CONFIG.model_copy(update={"problems_at_once": 4}), provider=Broken())
