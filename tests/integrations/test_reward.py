"""Rewards: nothing but a fast kernel of its own pays, and nothing pays beyond the roofline."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.integrations.reward import Reward, RewardTerms, reward
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork
from kernelwright.sandbox.verdict.verdicts import (
    JAIL_OFF,
    Authenticity,
    Evidence,
    Failed,
    Measurement,
    Pairing,
    Passed,
    ProblemStatus,
)

WORK = NecessaryWork(read_bytes=1, written_bytes=1)


def evidence(label="custom", weak=False, **more):
    status = ProblemStatus(status="weak" if weak else "ok", why=("zeros",) if weak else ())
    given = {"jail": ("a jail",), "seconds": {}, "versions": {}} | more
    return Evidence(authenticity=Authenticity(label=label), problem_status=status, **given)


def passed(speedup=2.0, floor_ms=None, least_ms=0.0, spread=0.0, **more):
    """As `judge --json` says it; the candidate takes 1 ms."""
    baseline = tuple(speedup * (1 + (spread if index % 2 else -spread)) for index in range(20))
    eager = Pairing(baseline="eager", candidate_ms=(1.0,) * 20, baseline_ms=baseline)
    floor = None
    if floor_ms is not None:
        floor = Floor(work=WORK, memory_ms=0.0, direct_ms=floor_ms, least_ms=least_ms)
    return report(Passed(measurement=Measurement(pairings=(eager,), threads=1, floor=floor), evidence=evidence(**more)))


def failed(stage="check"):
    return report(Failed(stage=stage, reason="wrong", evidence=evidence()))


def value(found, **terms):
    return reward(found, RewardTerms(**terms)).value


@pytest.mark.parametrize("stage", ["scan", "build", "load", "run", "check"])
def test_what_fails_is_worth_nothing_however_far_it_came(stage):
    assert reward(failed(stage)) == Reward(value=0, why=f"failed at {stage}")


def test_what_was_right_until_it_was_timed_is_quarantined():
    found = reward(failed("time"))
    assert (found.value, found.flags, found.is_quarantined) == (0, ("failed_when_timed",), True)


def test_where_there_is_no_verdict_there_is_no_reward_not_even_a_bad_one():
    assert reward(None) == Reward(value=None, flags=("unjudged",), why="there is no verdict")


def test_below_and_at_the_baseline_and_half_of_the_way_to_the_floor_the_parts_are_earned():
    assert value(passed(1.0)) == pytest.approx(0.3)
    assert value(passed(0.5)) == pytest.approx(0.15)
    assert value(passed(2.0, floor_ms=0.5)) == pytest.approx(0.65)


def test_without_a_floor_a_speedup_earns_by_its_logarithm_up_to_the_full_one():
    assert value(passed(10.0)) == value(passed(1000.0)) == 1
    assert value(passed(math.sqrt(10))) == pytest.approx(0.65)


def test_at_the_floor_everything_is_earned_and_beyond_it_nothing_more():
    at, beyond = reward(passed(4.0, floor_ms=1.0)), reward(passed(8.0, floor_ms=2.0))
    assert (at.value, beyond.value) == (1, 1)
    assert (at.flags, beyond.flags) == ((), ("below_floor",))


def test_where_the_baseline_is_near_the_floor_there_is_little_to_earn():
    assert value(passed(1.1, floor_ms=1.0)) == pytest.approx(0.3 + 0.7 * math.log(1.1) / math.log(2))


def test_what_is_faster_than_any_program_can_be_earns_nothing_and_is_flagged():
    found = reward(passed(8.0, floor_ms=2.0, least_ms=1.5))
    assert (found.value, found.flags) == (0, ("impossible",))
    assert found.is_quarantined


def test_the_lower_end_of_the_interval_is_what_pays():
    found = passed(2.0, spread=0.1)
    assert found["speedup_low"] < found["speedup"]
    assert value(found) == pytest.approx(0.3 + 0.7 * math.log(found["speedup_low"]) / math.log(10))


@pytest.mark.parametrize("doubt", ["too_noisy", "unconfirmed"])
def test_a_doubtful_speedup_pays_for_being_right_alone(doubt):
    found = reward(passed(4.0) | {"comparison": doubt})
    assert (found.value, found.flags) == (pytest.approx(0.3), (doubt,))


def test_noise_makes_a_slow_candidate_no_better():
    assert value(passed(0.5) | {"comparison": "too_noisy"}) == value(passed(0.5))


@pytest.mark.parametrize("label", ["library_only", "unknown"])
def test_what_has_no_kernel_of_its_own_earns_nothing_unless_that_is_paid_for(label):
    found = reward(passed(4.0, label=label))
    assert (found.value, found.flags) == (0, ("no_own_kernel",))
    assert value(passed(4.0, label=label), paid="all") == value(passed(4.0))


def test_a_kernel_beside_library_calls_earns_nothing_unless_that_is_paid_for():
    found = passed(4.0, label="mixed")
    assert (value(found), reward(found).flags) == (0, ("library",))
    assert value(found, paid="mixed") == value(passed(4.0))


def test_a_failed_build_that_was_hidden_earns_nothing():
    found = reward(passed(4.0, hidden_builds=("fast: error",)))
    assert (found.value, found.flags) == (0, ("hidden_build",))


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ({"weak": True}, "weak_problem"),
        ({"without": ("families",)}, "undefended"),
        ({"jail": (JAIL_OFF, "reaper of orphans")}, "undefended"),
    ],
)
def test_a_pass_that_says_nothing_teaches_nothing(more, flag):
    found = reward(passed(4.0, **more))
    assert (found.value, found.flags) == (None, (flag,))


def test_a_record_from_before_floors_and_hidden_builds_is_still_worth_something():
    old = passed(4.0)
    for key in ("floor_ms", "impossible_below_ms", "hidden_builds", "without", "against", "jail"):
        del old[key]
    assert value(old) == value(passed(4.0))


@given(st.floats(0.01, 100), st.floats(1.001, 10), st.one_of(st.none(), st.floats(0.001, 50)))
def test_faster_is_never_worth_less_and_nothing_is_worth_more_than_one(speedup, factor, floor_ms):
    def at(one):
        numbers = {"speedup_low": one, "candidate_ms": 50 / one, "baselines_ms": {"eager": 50.0}, "against": "eager"}
        return value(passed() | numbers | {"floor_ms": floor_ms, "comparison": "faster"})

    assert 0 <= at(speedup) <= at(speedup * factor) <= 1
