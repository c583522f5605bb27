"""A search that is killed anywhere goes on to the same end: SIGKILL at random points of the code."""

import os
import random
import signal
import sys

import pytest

from agent.log import RunLog
from agent.view import fold
from tests.agent.search_parts import CONFIG, PROBLEM, STORY, Scripted, new_log, outline, searched

KILLS = 50
CONFIGS = {"one slot": CONFIG, "lockstep": CONFIG.model_copy(update={"slots": 3, "lockstep": True})}


class Counting(Scripted):
    """Writes each answer that it gives into a file, so that answers are counted over several processes."""

    def __init__(self, ledger):
        super().__init__({number: answer for number, answer in Scripted().answers.items()})
        self.ledger = ledger

    async def complete(self, request, ask, prompt):
        reply = await super().complete(request, ask, prompt)
        with open(self.ledger, "a") as file:
            file.write(f"{request.digest}\n")
        return reply


def run_in_child(folder, ledger, config, calls):
    """Search in a forked process that is killed at its n-th call of a function; how the process ended."""
    child = os.fork()
    if child == 0:
        try:
            left = calls

            def count(frame, event, argument):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            with RunLog.open(folder) as log:
                sys.setprofile(count if calls else None)
                searched(log, provider=Counting(ledger), config=config)
                sys.setprofile(None)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def calls_of_a_whole_search(folder, config):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1

    with new_log(folder) as log:
        sys.setprofile(count)
        view = searched(log, config=config)
        sys.setprofile(None)
    return calls, [attempt.ask for attempt in view.attempts], outline(view)


@pytest.fixture(scope="module", params=CONFIGS)
def killed(request, tmp_path_factory):
    """The asks of an uninterrupted search, and the ends of those that were killed at `KILLS` random points in all."""
    config, base = CONFIGS[request.param], tmp_path_factory.mktemp("killed")
    calls, asks, ends = calls_of_a_whole_search(base / "whole", config)
    rng, ended = random.Random(7), []
    kills = 0
    while kills < KILLS:
        folder, ledger = base / f"run{len(ended)}", base / f"ledger{len(ended)}"
        new_log(folder).close()
        deaths = 0
        while run_in_child(folder, ledger, config, rng.randrange(1, calls)) == -signal.SIGKILL:
            deaths += 1
        kills += deaths
        with RunLog.open(folder) as log:
            events = list(log.events(PROBLEM.name))
            ended.append((fold(PROBLEM.name, events), events, ledger.read_text().split(), deaths))
    return asks, ends, ended


def test_the_asks_are_those_of_the_uninterrupted_search(killed):
    asks, _, ended = killed
    assert all([attempt.ask for attempt in view.attempts] == asks for view, *_ in ended)


def test_the_attempts_end_as_in_the_uninterrupted_search(killed):
    _, ends, ended = killed
    assert all(outline(view) == ends for view, *_ in ended)


def test_no_answer_is_lost_and_none_is_taken_twice(killed):
    _, _, ended = killed
    for view, events, *_ in ended:
        replied = [event.attempt for event in events if event.kind == "replied"]
        assert sorted(replied) == [attempt.number for attempt in view.attempts]


def test_what_was_answered_is_not_asked_again(killed):
    """An answer that was on its way into the log when the process died is the one thing that must be asked again."""
    _, _, ended = killed
    for view, _, asked, deaths in ended:
        extra = len(asked) - len(set(asked))
        assert set(asked) == {attempt.request_digest for attempt in view.attempts}
        assert extra <= deaths * 3


def test_the_story_has_an_end(killed):
    _, ends, _ = killed
    assert len(ends) == len(STORY)
