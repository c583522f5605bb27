"""No cheat gets through, and each fails where and why it should."""

import pytest

from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from tests.hostile.cheats.corpus import ALL, CHEATS
from tests.hostile.cheats.kinds import ELSEWHERE, KINDS
from tests.hostile.cheats.problems import NAMES, posed

pytestmark = pytest.mark.slow

BY_PROBLEM = sorted(CHEATS, key=lambda name: NAMES.index(CHEATS[name].problem))
"""So that one problem's reference does not wait for another's candidates."""


@pytest.mark.parametrize("name", BY_PROBLEM)
def test_a_cheat_fails_where_and_why_it_should(judge_of, name, outcomes):
    cheat = CHEATS[name]
    verdict = judge_of(cheat.problem).judge(cheat.candidate)
    outcomes.check(f"hostile: {name}", verdict)
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage == cheat.stage, verdict
    assert any(words in verdict.reason for words in cheat.words.split("|")), verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_way_that_cheats_lean_on_is_right(judge_of, name):
    found = posed(name)
    verdict = judge_of(name).judge(found.candidate(f"return self.right({found.inputs})"))
    if found.problem.operators == "any":
        assert isinstance(verdict, Passed), verdict
    else:
        assert f"policy is {found.problem.operators}" in verdict.reason, verdict


def test_every_kind_that_a_processor_allows_has_a_cheat():
    assert {line for cheat in ALL for line in cheat.lines} == set(KINDS)


def test_every_kind_is_met_here_or_elsewhere():
    assert sorted([*KINDS, *ELSEWHERE]) == list(range(1, 90))


def test_no_two_cheats_have_the_same_name():
    assert len(CHEATS) == len(ALL)
