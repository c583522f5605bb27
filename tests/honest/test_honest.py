"""No honest candidate is refused."""

import pytest

from kernelwright.sandbox.verdict.verdicts import Passed
from tests.honest.compiled import COMPILED
from tests.honest.habits import HABITS
from tests.hostile.cheats.by_check import HONEST as BY_CHECK

pytestmark = pytest.mark.slow

HONEST = {f"{honest.habit} ({honest.problem})": honest for honest in [*COMPILED, *HABITS, *BY_CHECK]}


@pytest.mark.parametrize("name", sorted(HONEST, key=lambda name: HONEST[name].problem))
def test_an_honest_candidate_passes(judge_of, name, outcomes):
    honest = HONEST[name]
    verdict = judge_of(honest.problem).judge(honest.candidate)
    outcomes.check(f"honest: {name}", verdict)
    assert isinstance(verdict, Passed), verdict
