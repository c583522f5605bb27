"""Searches that are killed at random points of the code, and gone on with until they end."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from kernelwright.agent.engine.replaying import replay
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from tests.agent.search_parts import CONFIG, PROBLEM, Scripted, new_log, outline, searched

CONFIGS = {"one slot": CONFIG, "lockstep": CONFIG.model_copy(update={"slots": 3, "lockstep": True})}


class Ended(NamedTuple):
    """A search that was killed now and then, at its end."""

    view: object
    events: list
    asked: list
    """Digests of all requests that the provider answered, in all processes."""
    deaths: int
    folder: Path

    @property
    def answered_once(self):
        """Whether each attempt took one answer."""
        replied = [event.attempt for event in self.events if event.kind == "replied"]
        return sorted(replied) == [attempt.number for attempt in self.view.attempts]

    @property
    def replays(self):
        """Whether the run, done again from its log alone, gives the same log."""
        with RunLog.open(self.folder) as log:
            return replay(log, self.folder.with_name(f"{self.folder.name}-again")).digest == log.digest()


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


def killed_searches(base, config, kills):
    """The asks and outcomes of an uninterrupted search; and those of searches that were killed `kills` times in all."""
    calls_of_a_whole_search(base / "first", config)  # what is loaded once would be counted, and is not called again
    calls, asks, ends = calls_of_a_whole_search(base / "whole", config)
    rng, ended = random.Random(7), []
    while sum(one.deaths for one in ended) < kills:
        folder, ledger = base / f"run{len(ended)}", base / f"ledger{len(ended)}"
        new_log(folder).close()
        deaths = 0
        while run_in_child(folder, ledger, config, rng.randrange(1, calls)) == -signal.SIGKILL:
            deaths += 1
        with RunLog.open(folder) as log:
            events = list(log.events(PROBLEM.name))
            ended.append(Ended(fold(PROBLEM.name, events), events, ledger.read_text().split(), deaths, folder))
    return asks, ends, ended
