"""What each effort does, through real children; how its intervals hold is tried in `verdict/test_statistics`."""

import json
import logging

import pytest

from kernelwright.problems.input_distributions import DISTRIBUTIONS
from kernelwright.sandbox.authenticity.evidence import OBSERVED_CAVEAT
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.judging import UNOBSERVED, Judge, judge
from kernelwright.sandbox.timing.baselines import AS_CONSTRUCTED
from kernelwright.sandbox.verdict.report import recheck, report
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Evidence
from tests.sandbox.timing.test_timing import HONEST, IGNORES_WEIGHTS, NORM

SCREEN, SEARCH = (JudgeSettings(warm_up=1, effort=effort, time_budget_s=60) for effort in ("screen", "search"))
UNDISTURBED = SEARCH.model_copy(update={"without": ("placebo",)})
"""A busy machine could make a placebo unsteady, and then another worker pair is right to be asked for."""
WRONG = HONEST.replace("return self.norm(x)", "return 1.5 * self.norm(x)")
pytestmark = pytest.mark.slow


def workers(verdict):
    return set(verdict.measurement.closest.workers)


def test_a_screen_is_one_worker_and_says_what_it_left_out():
    verdict = judge(NORM, Candidate(source=HONEST), SCREEN)
    assert workers(verdict) == {0} and verdict.evidence.effort == "screen"
    assert UNOBSERVED in verdict.evidence.not_met
    assert 0 < len(set(verdict.evidence.not_met) & set(DISTRIBUTIONS)) < len(DISTRIBUTIONS)


def test_a_screen_that_is_to_look_closer_is_refused():
    with pytest.raises(ValueError, match="search"):
        Judge(NORM, SCREEN.model_copy(update={"profile": True}))


def test_a_screen_of_a_problem_with_a_policy_sees_what_runs():
    strict = NORM.model_copy(update={"operators": "custom-only"})
    verdict = judge(strict, Candidate(source=HONEST), SCREEN)
    assert verdict.outcome == "failed" and "custom-only" in verdict.reason


def test_what_runs_is_seen_in_the_worker_that_was_timed_last(caplog):
    """No process is started for it."""
    caplog.set_level(logging.DEBUG, "kernelwright.sandbox.calls")
    settings = JudgeSettings(warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4)
    verdict = judge(NORM, Candidate(source=HONEST), settings)
    assert OBSERVED_CAVEAT in verdict.evidence.authenticity.evidence
    assert caplog.messages.count("worker has greeted") == 1


def test_a_search_meets_every_family_and_takes_no_more_workers_than_a_ranking():
    verdict = judge(NORM, Candidate(source=HONEST), SEARCH)
    assert verdict.evidence.effort == "search" and verdict.evidence.not_met == ()
    assert 1 <= len(workers(verdict)) <= SEARCH.worker_pairs
    assert verdict.evidence.authenticity.label == "library_only"


def test_what_is_clearly_below_the_best_so_far_is_measured_by_one_worker():
    with Judge(NORM, UNDISTURBED) as judging:
        verdict = judging.evaluate(judging.build(Candidate(source=HONEST)), best_speedup=1e6)
    assert workers(verdict) == {0} and verdict.evidence.not_met == ()


def test_values_that_are_still_drawn_for_a_worker_that_is_not_needed_are_in_nobodys_way():
    slow = "__import__('time').sleep(0.2)\n    return [torch.randn(4096"  # long enough to be drawn ahead
    slowly = NORM.source.replace("return [torch.randn(64", slow)
    with Judge(NORM.model_copy(update={"source": slowly}), UNDISTURBED) as judging:
        verdict = judging.evaluate(judging.build(Candidate(source=HONEST)), best_speedup=1e6)
    assert workers(verdict) == {0} and verdict.evidence.not_met == ()


def test_the_interval_is_recomputed_from_the_record_alone():
    found = json.loads(json.dumps(report(judge(NORM, Candidate(source=HONEST), SEARCH))))
    assert found["measurement"]["known_spread"]["looks"] == SEARCH.worker_pairs
    assert recheck(found) == {}
    assert "speedup_low" in recheck(found | {"speedup_low": found["speedup_low"] * 1.01})


@pytest.mark.parametrize("settings", [SCREEN, SEARCH], ids=["screen", "search"])
@pytest.mark.parametrize("source", [WRONG, IGNORES_WEIGHTS], ids=["wrong", "ignores weights"])
def test_what_is_wrong_at_sight_is_wrong_at_every_effort(settings, source):
    verdict = judge(NORM, Candidate(source=source), settings)
    assert (verdict.outcome, verdict.stage) == ("failed", "check")


def test_a_candidate_that_is_wrong_at_sight_waits_for_one_reference_alone():
    with Judge(NORM, JudgeSettings(warm_up=1)) as judging:
        judging.judge(Candidate(source=WRONG))
        assert len(judging._baselines._eager) == 1


def test_a_first_look_never_has_the_constructors_weights():
    baselines = backend_of(SEARCH).baselines(NORM)
    baselines._kept = SEARCH.worker_pairs  # as where memory holds them all
    firsts = []
    for _ in range(8):
        baselines.next_candidate()
        firsts.append(baselines._index(0))
    assert AS_CONSTRUCTED not in firsts and len(set(firsts)) == SEARCH.worker_pairs - 1


def test_a_ranking_begins_with_the_same_reference_each_time():
    baselines = backend_of(JudgeSettings()).baselines(NORM)
    assert [(baselines.next_candidate(), baselines._index(0)) for _ in range(3)] == [(None, 0)] * 3


def test_records_from_before_there_were_efforts_are_of_a_ranking():
    old = {"jail": [], "seconds": {}, "authenticity": {"label": "custom"}, "problem_status": None, "versions": {}}
    assert Evidence.model_validate_json(json.dumps(old)).effort == "rank"
    assert JudgeSettings.model_validate_json("{}").effort == "rank"
