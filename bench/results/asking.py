"""Requests of a run under way that nobody has answered, asked anew by the present prompts.

A run that is resumed asks again word for word. Where the prompts have become better meanwhile, a parcel is unpacked
without such requests for repairs and improvements, and `ask` decides again and writes the tasks. All it needs is the
log: no device. An outdated verdict that nothing but an open request followed goes too: its answer is judged again.
"""

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.results.records import is_outdated
from kernelwright.agent.log.events import JudgedAttempt
from kernelwright.agent.log.store import Journal, RunLog
from kernelwright.agent.providers import AnswerPending
from kernelwright.agent.providers.files import TASKS, FilesProvider
from kernelwright.agent.replay import recorded_decider
from kernelwright.agent.strategies import Stop


def without_open(rows: Sequence[Sequence[Any]], answers: Collection[str]) -> list[Sequence[Any]]:
    """Leave out what is decided anew: requests that start from an earlier attempt and that nothing answers or follows.

    `rows`: seq, time, kind, problem, attempt and payload of each event; `answers`: names of files.
    """
    rows = _without_outdated(rows, answers)
    last = {(row[3], row[4]): row[0] for row in rows}
    return [row for row in rows if not (last[row[3], row[4]] == row[0] and _is_open(row, answers))]


def _is_open(row: Sequence[Any], answers: Collection[str]) -> bool:
    """Return whether an event asks for a repair or an improvement that has no answer's file."""
    if row[2] != "asked":
        return False
    body = json.loads(row[5])
    return bool(body["ask"]["parent"]) and not any(body["request_digest"][:16] in name for name in answers)


def _without_outdated(rows: Sequence[Sequence[Any]], answers: Collection[str]) -> list[Sequence[Any]]:
    """Cut each problem's events before its last verdict, where that is outdated and only an open request follows."""
    judged = {row[3]: row for row in rows if row[2] == "judged"}
    cut = {}
    for problem, found in judged.items():
        later = [row for row in rows if row[3] == problem and row[0] > found[0] and row[2] != "resumed"]
        is_last = all(_is_open(row, answers) for row in later)
        if is_last and is_outdated(JudgedAttempt.model_validate_json(found[5]).verdict):
            cut[problem] = found[0]
    return [row for row in rows if row[0] < cut.get(row[3], row[0] + 1)]


def ask(run: Path) -> int:
    """Log the next requests of every problem that waits for none, and write all tasks; return how many wait then."""
    tasks = FilesProvider(run / TASKS)
    with RunLog.open(run, alone=True) as log:
        for name in log.header.problems:
            journal = Journal(name, log)
            if journal.view.attempts and not journal.view.pending and journal.view.stopped is None:
                _ask(log, journal)
            for one in journal.view.pending:
                prompt = log.prompt(one.prompt)
                with suppress(AnswerPending):  # the task is written all the same
                    asyncio.run(tasks.complete(one.request(prompt.text), one.ask, prompt))
    return len(tasks.missing())


def _ask(log: RunLog, journal: Journal) -> None:
    """Ask for the device that the first request named; the end of a search is left to `resume`."""
    view, config = journal.view, journal.view.config
    assert config is not None, "it has been asked before"
    first = log.prompt(view.attempts[0].prompt)
    decision = recorded_decider(log, log, view.problem, config, first).decide(view, config.slots)
    if not isinstance(decision, Stop):
        journal.write_all(decision)
