"""A search that is killed anywhere goes on to the same end: SIGKILL at random points of the code."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.faults import FAULTS, PROBLEM, RIGHT, missing_words, repair_prompt, with_fault
from tests.support.search import CONFIGS, STORY, killed_searches, outline

pytestmark = pytest.mark.slow


KILLS = 50


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.long) if name == "one slot" else name for name in CONFIGS],
)
def killed(request, tmp_path_factory):
    return killed_searches(tmp_path_factory.mktemp("killed"), CONFIGS[request.param], KILLS)


def test_the_asks_and_their_ends_are_those_of_the_uninterrupted_search(killed):
    asks, ends, ended = killed
    assert all([attempt.ask for attempt in view.attempts] == asks for view, *_ in ended)
    assert all(outline(view) == ends for view, *_ in ended) and len(ends) == len(STORY)


def test_no_answer_is_lost_or_taken_twice_and_the_run_replays_to_the_same_log(killed):
    _, _, ended = killed
    assert all(one.answered_once for one in ended)
    assert all(one.replays for one in ended)


def test_what_was_answered_is_not_asked_again(killed):
    """An answer that was on its way into the log when the process died is the one thing that must be asked again."""
    _, _, ended = killed
    for one in ended:
        extra = len(one.asked) - len(set(one.asked))
        assert set(one.asked) == {attempt.request_digest for attempt in one.view.attempts}
        assert extra <= one.deaths * 3


@pytest.fixture(scope="module")
def judge():
    with Judge(PROBLEM, QUICK.model_copy(update={"call_timeout_s": 2.0})) as judge:
        yield judge


def test_the_kernel_is_right_without_a_fault(judge):
    verdict = judge.judge(Candidate(source=RIGHT, language="cpp"))
    assert isinstance(verdict, Passed), verdict


@pytest.mark.parametrize("fault", FAULTS)
def test_the_repair_prompt_names_what_decides(judge, fault):
    source = with_fault(fault)
    assert source != RIGHT
    verdict = judge.judge(Candidate(source=source, language="cpp"))
    assert isinstance(verdict, Failed), verdict
    assert not missing_words(fault, verdict), repair_prompt(source, verdict)


@pytest.mark.parametrize("fault", ["a missing semicolon", "a method that is not there"])
def test_no_line_of_the_evidence_stands_twice(judge, fault):
    source = with_fault(fault)
    verdict = judge.judge(Candidate(source=source, language="cpp"))
    lines = [line.strip() for line in repair_prompt(source, verdict).splitlines() if len(line.strip()) > 20]
    assert len(lines) == len(set(lines))
