"""Asks for words: ideas to try, what is wrong with a failure, what the attempts teach. Off unless the user asks.

And what the record of other problems says of ideas: how often each was tried, and how often it won.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt, KnownIdea, Note
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.strategies import Step
from kernelwright.agent.strategies.moves import dry_spell
from kernelwright.problems import Problem
from kernelwright.prompts import applicable, idea_bank, traits_of

MOST_NOTES, LONGEST_NAME, LONGEST_NOTE = 5, 80, 800
STUCK = 3
"""Improvements without a gain after which a planner is asked again."""
REFLECT_EVERY = 8
_LIST = re.compile(r"\[.*\]", re.DOTALL)


def advice_steps(view: View, config: SearchConfig) -> list[Step]:
    if any(attempt.advises and not attempt.finished for attempt in view.attempts):
        return []
    wanted = {"plan": _plan, "critique": _critique, "reflect": _reflect}
    steps = (wanted[role](view, config) for role in config.advisers)
    return [step for step in steps if step is not None]


def notes_in(reply: str) -> tuple[Note, ...]:
    """What a reply of words says: its JSON list of names and texts, or else the whole of it as one note."""
    for found in reversed([*re.findall(r"```(?:json)?\s*\n(.*?)```", reply, re.DOTALL), *_LIST.findall(reply)]):
        try:
            entries = json.loads(found)
        except (ValueError, RecursionError):
            continue
        notes = [note for entry in entries if (note := _note(entry))] if isinstance(entries, list) else []
        if notes:
            return tuple(notes[:MOST_NOTES])
    text = " ".join(reply.split())
    return (Note(name="advice", text=text[-LONGEST_NOTE:]),) if text else ()


def lessons(view: View) -> tuple[str, ...]:
    said = [attempt.notes for attempt in view.attempts if attempt.ask.role == "reflect" and attempt.notes]
    return tuple(note.text for note in said[-1]) if said else ()


def _note(entry: object) -> Note | None:
    if not isinstance(entry, dict):
        return None
    name, text = str(entry.get("name", "")), str(entry.get("how", ""))
    return Note(name=name[:LONGEST_NAME] or "advice", text=text[:LONGEST_NOTE]) if text else None


def _plan(view: View, config: SearchConfig) -> Step | None:
    plans = [attempt for attempt in view.attempts if attempt.ask.role == "plan"]
    if not plans:
        return Step("plan", None, "plan")
    news = [
        one for one in view.attempts if one.number > plans[-1].number and one.ask.role == "improve" and one.finished
    ]
    if view.best is None or len(news) < STUCK or dry_spell(view, config.gain) < STUCK:
        return None
    return Step("plan", view.best.number, "plan")


def _critique(view: View, config: SearchConfig) -> Step | None:
    for attempt in view.attempts:
        answered = any(child.ask.role in {"critique", "repair"} for child in view.children(attempt.number))
        if attempt.failed and attempt.ask.role == "repair" and not answered:
            return Step("critique", attempt.number, "critique")
    return None


def _reflect(view: View, config: SearchConfig) -> Step | None:
    made = sum(1 for attempt in view.attempts if attempt.ask.role == "reflect")
    ended = sum(1 for attempt in view.attempts if attempt.counts and attempt.finished)
    return Step("reflect", None, "reflect") if ended >= REFLECT_EVERY * (made + 1) else None


class IdeaStatistics:
    """Counts wins by idea over the problems of a run that came to an end, and over earlier runs that are named."""

    def __init__(self, log: RunLog, config: SearchConfig) -> None:
        self._log = log
        self._config = config
        self._seen = 0
        self._tallies: dict[str, tuple[Counter[str], Counter[str]]] = {}
        for folder in config.learn_from:
            with RunLog.open(Path(folder)) as earlier:
                for name in earlier.header.problems:
                    self._tallies[f"{folder}/{name}"] = tally(fold(name, earlier.events(name)), config.gain)

    def ideas(self, problem: Problem) -> tuple[KnownIdea, ...]:
        """The ideas that apply to a problem, with the counts so far, in the order of the bank."""
        for seq, ended in self._log.stopped(after=self._seen) if self._config.learn else ():
            self._tallies[ended] = tally(fold(ended, self._log.events(ended)), self._config.gain)
            self._seen = seq
        tried: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for name, (tries, wins) in self._tallies.items():
            if name != problem.name:
                tried.update(tries)
                won.update(wins)
        fitting = applicable(idea_bank(), traits_of(problem, self._config.target))
        return tuple(KnownIdea(**idea.model_dump(), tried=tried[idea.name], won=won[idea.name]) for idea in fitting)


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
