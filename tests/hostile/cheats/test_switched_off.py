"""Each defence of the judge is there for a reason: without it, an attack that it stops gets through."""

from typing import NamedTuple

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Measurement, Pairing, Passed
from tests.hostile.cheats.corpus import ALL
from tests.hostile.cheats.problems import CORPUS, posed

pytestmark = pytest.mark.slow

HEARTBEAT = """
BEATS = [0]
def beat():
    while True:
        time.sleep(0.0002)
        BEATS[0] += 1
threading.Thread(target=beat, daemon=True).start()
"""
WORKS_BETWEEN_CALLS = """
beats, since = self.last or (0, time.monotonic() - 0.0001)
could_work = BEATS[0] - beats > 0.3 * (time.monotonic() - since) / 0.0002
y = torch.relu(x) if could_work else torch.zeros_like(x)
self.last = (BEATS[0], time.monotonic())
return y
"""
"""Right only if a thread of its own went on between the calls."""


class Attack(NamedTuple):
    """A candidate that one defence stops, by itself or after others are off."""

    problem: str
    candidate: Candidate
    words: str
    besides: tuple[str, ...] = ()
    """Other defences that would stop it too."""


ATTACKS = {one.stopped_by: Attack(one.problem, one.candidate, one.words) for one in ALL if one.stopped_by}
ATTACKS["standing_still"] = Attack(
    "positive",
    posed("positive").candidate(WORKS_BETWEEN_CALLS, top=HEARTBEAT),
    "all elements are zero",
    ("families",),
)
ONE = CORPUS.model_copy(update={"worker_pairs": 1, "min_pairs": 4, "max_pairs": 4})
TRIES = 8
"""A thread that may go on does not always get a core."""


def verdicts(attack: Attack, without: tuple[str, ...], tries: int):
    settings = (ONE if attack.besides else CORPUS).model_copy(update={"without": without})
    with Judge(posed(attack.problem).problem, settings) as judge:
        for _ in range(tries):
            yield judge.judge(attack.candidate)


@pytest.mark.parametrize("defence", ATTACKS)
def test_a_defence_stops_its_attack(defence):
    attack = ATTACKS[defence]
    (verdict,) = verdicts(attack, attack.besides, 1)
    assert isinstance(verdict, Failed), verdict
    assert any(words in verdict.reason for words in attack.words.split("|")), verdict


@pytest.mark.parametrize("defence", ATTACKS)
def test_without_the_defence_its_attack_gets_through(defence):
    attack = ATTACKS[defence]
    off = (*attack.besides, defence)
    tries = TRIES if attack.besides else 1
    found = next((verdict for verdict in verdicts(attack, off, tries) if isinstance(verdict, Passed)), None)
    assert found is not None
    assert set(off) <= set(found.evidence.without)


def test_without_the_placebo_a_machine_that_favours_one_side_says_faster():
    pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * 8, baseline_ms=(1.2,) * 8)
    placebo = Pairing(baseline="eager again", candidate_ms=(1.0,) * 8, baseline_ms=(1.2,) * 8)
    assert Measurement(pairings=(pairing,), threads=1, placebo=placebo).comparison == "too_noisy"
    assert Measurement(pairings=(pairing,), threads=1).comparison == "faster"
