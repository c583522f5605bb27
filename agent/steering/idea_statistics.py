"""What the record of other problems says of ideas: how often each was tried, and how often it won."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.findings import KnownIdea
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.problems import Problem
from kernelwright.prompts import applicable, idea_bank, traits_of


class IdeaStatistics:
    """Counts wins by idea over the problems of a run that came to an end, and over earlier runs that are named."""

    def __init__(self, log: RunLog, config: SearchConfig) -> None:
        self._log = log
        self._config = config
        self._seen = 0
        self._tallies: dict[str, tuple[Counter[str], Counter[str]]] = {}
        for folder in config.learn_from:
            self._read_run(Path(folder))

    def ideas(self, problem: Problem) -> tuple[KnownIdea, ...]:
        """The ideas that apply to a problem, with the counts so far, in the order of the bank."""
        if self._config.learn:
            self._catch_up()
        tried: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for name, (tries, wins) in self._tallies.items():
            if name != problem.name:
                tried.update(tries)
                won.update(wins)
        fitting = applicable(idea_bank(), traits_of(problem, self._config.target))
        return tuple(KnownIdea(**idea.model_dump(), tried=tried[idea.name], won=won[idea.name]) for idea in fitting)

    def _catch_up(self) -> None:
        for seq, problem in self._log.stopped(after=self._seen):
            view = fold(problem, self._log.events(problem))
            self._tallies[problem] = tally(view, self._config.gain)
            self._seen = seq

    def _read_run(self, folder: Path) -> None:
        with RunLog.open(folder) as log:
            for name in log.header.problems:
                self._tallies[f"{folder}/{name}"] = tally(fold(name, log.events(name)), self._config.gain)


def tally(view: View, gain: float) -> tuple[Counter[str], Counter[str]]:
    """How often each idea was tried and won. The repairs of an attempt belong to it: they follow the same idea.

    A draft wins if it is right in the end, an improvement if it beats its parent by the share `gain`.
    """
    tried: Counter[str] = Counter()
    won: Counter[str] = Counter()
    for attempt in view.attempts:
        if attempt.ask.role not in {"propose", "improve"}:
            continue
        chain = list(_with_repairs(view, attempt))
        if all(one.finished for one in chain):
            tried[attempt.ask.idea] += 1
            parent = view.attempt(attempt.ask.parent).standing if attempt.ask.parent else None
            bar = 0.0 if parent is None else parent * (1 + gain)
            won[attempt.ask.idea] += any(one.standing is not None and one.standing > bar for one in chain)
    return tried, won


def _with_repairs(view: View, attempt: Attempt) -> Iterable[Attempt]:
    yield attempt
    for child in view.children(attempt.number):
        if child.ask.role == "repair":
            yield from _with_repairs(view, child)
