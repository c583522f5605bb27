"""A candidate that has itself woken between its calls is refused, every time; without the witness it gets through.

Timers are to be had only without a jail: the system call filter leaves none on a processor.
"""

import pytest

from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from tests.hostile.cheats.conftest import judges
from tests.hostile.cheats.problems import CORPUS, posed
from tests.hostile.cheats.woken import INTERRUPTS, SETTING_ONLY, WOKEN

pytestmark = pytest.mark.slow

TRICKS = {cheat.trick: cheat for cheat in WOKEN}
TRIES = 24
"""The timer may come while the judge is about to stop it, and then it can not be stopped."""
UNJAILED = CORPUS.model_copy(update={"jail": "off"})


@pytest.fixture(scope="module")
def unjailed_judge_of():
    with judges(UNJAILED) as judge:
        yield judge


@pytest.fixture(scope="module")
def blind_judge_of():
    # What follows the inputs would also follow what they are overwritten with.
    with judges(UNJAILED.model_copy(update={"without": ("idle_witness", "overwriting")})) as judge:
        yield judge


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("trick", TRICKS)
def test_a_candidate_that_has_itself_woken_is_refused(unjailed_judge_of, trick, turn):
    cheat = TRICKS[trick]
    verdict = unjailed_judge_of(cheat.problem).judge(cheat.candidate)
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage in cheat.stage.split("|"), verdict
    assert any(words in verdict.reason for words in cheat.words.split("|")), verdict


@pytest.mark.parametrize("trick", TRICKS)
def test_without_the_witness_it_gets_through(blind_judge_of, trick):
    cheat = TRICKS[trick]
    tried = (blind_judge_of(cheat.problem).judge(cheat.candidate) for _ in range(TRIES))
    assert any(isinstance(verdict, Passed) for verdict in tried)


def test_a_timer_that_is_never_started_wakes_nobody(unjailed_judge_of):
    verdict = unjailed_judge_of("positive").judge(posed("positive").candidate("return self.right(x)", top=SETTING_ONLY))
    assert isinstance(verdict, Passed), verdict


def test_a_candidate_gets_no_timers_that_interrupt_others(judge_of):
    verdict = judge_of(INTERRUPTS.problem).judge(INTERRUPTS.candidate)
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage == INTERRUPTS.stage, verdict
    assert INTERRUPTS.words in verdict.reason, verdict


def test_without_the_filter_nobody_sees_them(unjailed_judge_of):
    verdict = unjailed_judge_of(INTERRUPTS.problem).judge(INTERRUPTS.candidate)
    assert isinstance(verdict, Passed), verdict
