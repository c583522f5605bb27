"""Asks for words: ideas to try, what is wrong with a failure, what the attempts teach. Off unless the user asks."""

import json
import re

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.findings import Note
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.strategies import Step
from kernelwright.agent.strategies.moves import dry_spell

MOST_NOTES, LONGEST_NAME, LONGEST_NOTE = 5, 80, 800
STUCK = 3
"""Improvements without a gain after which a planner is asked again."""
REFLECT_EVERY = 8
_LIST = re.compile(r"\[.*\]", re.DOTALL)


def advice_steps(view: View, config: SearchConfig) -> list[Step]:
    """The advice to ask for now; at most one of each kind, and none while one is pending."""
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
    """What the last reflection said."""
    said = [attempt.notes for attempt in view.attempts if attempt.ask.role == "reflect" and attempt.notes]
    return tuple(note.text for note in said[-1]) if said else ()


def _note(entry: object) -> Note | None:
    if not isinstance(entry, dict):
        return None
    name, text = str(entry.get("name", "")), str(entry.get("how", ""))
    return Note(name=name[:LONGEST_NAME] or "advice", text=text[:LONGEST_NOTE]) if text else None


def _plan(view: View, config: SearchConfig) -> Step | None:
    """Before the first draft, and each time that the search is stuck."""
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
    """Of a repair that failed again, before the next repair."""
    for attempt in view.attempts:
        if attempt.failed and attempt.ask.role == "repair" and not _answered(view, attempt):
            return Step("critique", attempt.number, "critique")
    return None


def _reflect(view: View, config: SearchConfig) -> Step | None:
    made = sum(1 for attempt in view.attempts if attempt.ask.role == "reflect")
    ended = sum(1 for attempt in view.attempts if attempt.counts and attempt.finished)
    return Step("reflect", None, "reflect") if ended >= REFLECT_EVERY * (made + 1) else None


def _answered(view: View, attempt: Attempt) -> bool:
    return any(child.ask.role in {"critique", "repair"} for child in view.children(attempt.number))
