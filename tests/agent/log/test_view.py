import sys
from datetime import UTC, datetime

import pytest

from kernelwright.agent.log.events import Event, JudgedAttempt, RunLogError, Stopped
from kernelwright.agent.log.view import fold
from tests.support.search import CONFIG, PROBLEM, Scripted, new_log, passed, reply_with, searched


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("view") / "run") as log:
        searched(log)
        return tuple(log.events())


def event(body):
    return Event(seq=1, time=datetime.now(UTC), body=body)


def test_folding_in_two_parts_is_folding_at_once_and_leaves_earlier_views_as_they_were(events):
    view = early = fold(PROBLEM.name, events[:10])
    copy = early.model_copy(deep=True)
    for later in events[10:]:
        view = view.after(later)
    assert view == fold(PROBLEM.name, events)
    assert early == copy


def test_folding_costs_as_much_for_each_event_however_many_there_are(tmp_path):
    costs = []
    for attempts in (20, 80):
        with new_log(tmp_path / str(attempts)) as log:
            answers = {number: reply_with(str(number)) for number in range(1, attempts + 1)}
            config = CONFIG.model_copy(update={"attempts": attempts, "patience": attempts})
            searched(log, provider=Scripted(answers), config=config)
            events = tuple(log.events())
        costs.append(calls_in(lambda events=events: fold(PROBLEM.name, events)) / len(events))
    assert costs[1] < 1.5 * costs[0]


def calls_in(work):
    """How many functions are called: what grows with the work, and not with how slow the machine is."""
    count = 0

    def counted(frame, kind, argument):
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_failures_are_counted_by_outcome_and_a_view_of_another_problem_is_empty(events):
    assert fold(PROBLEM.name, events).failures == {"failed at check": 1, "no candidate (no_code)": 1}
    assert fold("other", events).attempts == ()


@pytest.mark.parametrize(("kind", "outcome"), [("asked", "not answered yet"), ("extracted", "not judged yet")])
def test_what_is_not_finished_is_pending(events, kind, outcome):
    end = next(index for index, event in enumerate(events) if event.kind == kind) + 1
    assert [attempt.outcome for attempt in fold(PROBLEM.name, events[:end]).pending] == [outcome]


def test_the_best_follows_a_later_and_faster_attempt(events):
    ends = [index + 1 for index, event in enumerate(events) if event.kind == "judged"]
    bests = [fold(PROBLEM.name, events[:end]).best for end in ends]
    assert [best and best.number for best in bests] == [None, 2, 4, 5, 5, 5]


def test_a_stopped_search_says_why_until_it_goes_on(events):
    stopped = fold(PROBLEM.name, [*events, event(Stopped(problem=PROBLEM.name, reason="enough"))])
    assert stopped.stopped == "enough"


def test_an_event_of_an_attempt_that_was_never_asked_and_a_gap_in_the_numbers_are_refused(events):
    with pytest.raises(RunLogError, match="has no attempt 3"):
        fold(PROBLEM.name, [event(JudgedAttempt(problem=PROBLEM.name, attempt=3, verdict=passed(1.0)))])
    later = [one for one in events if one.attempt == 2]
    with pytest.raises(RunLogError, match="from attempt 0 to 2"):
        fold(PROBLEM.name, later)
