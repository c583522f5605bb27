"""Every hostile candidate fails at the stage and for the reason that the table says, and leaves nothing behind."""

import json
import time

import pytest

from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.snooping import lines, told
from tests.hostile.surroundings import SECRET
from tests.hostile.trust import WORKS

pytestmark = pytest.mark.slow

LIMIT_S = 40
"""For one attack on a busy machine; the call's own limit is 4 s."""


def judged(place, attack) -> Failed:
    """The verdict on an attack, after everything that must hold for each of them.

    With an effort below `rank` the judge opens references one by one and keeps them: all are there after some times.
    """
    candidate = attack.candidate(place.around)
    if place.judge.settings.effort != "rank":
        for _ in range(place.judge.settings.worker_pairs):
            place.judge.judge(candidate)
    before = place.surroundings.state()
    start = time.monotonic()
    verdict = place.judge.judge(candidate)
    assert time.monotonic() - start < LIMIT_S
    assert place.surroundings.state() == before
    assert isinstance(verdict, Failed), verdict
    assert SECRET not in verdict.reason + verdict.log
    return verdict


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "snooping"])
def test_an_attack_fails_where_it_should_and_leaves_nothing(place, name):
    attack = ATTACKS[name]
    verdict = judged(place, attack)
    assert verdict.stage == attack.stage, verdict
    assert any(words in verdict.reason for words in attack.words.split("|")), verdict


@pytest.fixture(scope="session")
def report(place):
    """What worked of all that the snooping candidate tried; it leaves nothing either."""
    verdict = judged(place, ATTACKS["snooping"])
    report = json.loads(told(verdict.log))
    assert report["tried"] == len(lines())
    return report["worked"]


def test_no_attempt_fails_for_another_reason_than_a_refusal(report):
    assert not [entry for entry in report if " raised " in entry]


@pytest.mark.parametrize("name", lines())
def test_an_attempt_is_refused_unless_the_table_says_otherwise(place, report, name):
    assert (name in report) == (place.name in WORKS.get(name, ()))


def test_after_all_attacks_an_honest_candidate_passes(place):
    verdict = place.judge.judge(Attack("", "", "").candidate({}))
    assert isinstance(verdict, Passed), verdict
    assert isinstance(verdict, Passed)


def test_a_compiled_honest_candidate_passes(place):
    top = """
    SOURCE = 'extern "C" void twice(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = 2 * x[i]; }'
    PATH = load_inline(name="twice", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
    TWICE = ctypes.CDLL(PATH).twice
    TWICE.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    """
    forward = "y = torch.empty_like(x); TWICE(x.data_ptr(), y.data_ptr(), x.numel()); return y"
    verdict = place.judge.judge(Attack("", "", "", forward, top).candidate({}))
    assert isinstance(verdict, Passed), verdict
