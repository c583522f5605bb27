"""What the next prompt is told of the attempts before it."""

import pytest

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.log.view import fold
from kernelwright.prompts import TargetVersions
from tests.support.search import CPU, PROBLEM, new_log, searched


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("briefs") / "run") as log:
        searched(log)
        yield log


@pytest.fixture(scope="module")
def brief_before(log):
    """The brief that an attempt was asked with, made again from the events before it."""

    def made(number):
        events = list(log.events(PROBLEM.name))
        asked = next(event for event in events if event.kind == "asked" and event.attempt == number)
        maker = BriefMaker(device=CPU, versions=TargetVersions(), texts=log)
        return maker(PROBLEM, fold(PROBLEM.name, events[: events.index(asked)]), asked.body.ask)

    return made


def test_a_first_draft_has_no_parent_and_no_history(brief_before):
    brief = brief_before(1)
    assert (brief.parent, brief.history) == (None, ())


def test_a_repair_gets_the_source_the_reason_and_the_log(brief_before):
    parent = brief_before(3).parent
    assert (parent.number, parent.outcome) == (1, "failed at check")
    assert parent.source.startswith("# judged: check\n")
    assert parent.evidence.split("\n\n") == ["went wrong at check", "line 1\nline 2"]


def test_a_repair_of_a_reply_without_code_has_no_source(brief_before):
    parent = brief_before(4).parent
    assert (parent.source, parent.outcome) == ("", "no candidate (no_code)")
    assert parent.evidence and "no candidate" in parent.evidence


def test_an_improvement_gets_the_measured_times(brief_before):
    parent = brief_before(5).parent
    assert (parent.candidate_ms, parent.speedup) == (1.0, pytest.approx(1.5))
    assert "eager: 1.50 ms" in parent.evidence and "against eager: 1.50" in parent.evidence
    assert "1.50 to 1.50, faster" in parent.evidence


def test_the_history_holds_all_that_is_finished_and_says_where_a_source_came_again(brief_before):
    history = brief_before(5).history
    assert [row.outcome for row in history] == ["failed at check", "passed", "no candidate (no_code)", "passed"]
    assert "attempt 5" in brief_before(7).history[5].detail
