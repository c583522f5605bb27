"""Requests of a run under way that nobody has answered, asked anew by the present prompts.

A run that is resumed asks again word for word. Where the prompts have become better meanwhile, a parcel is unpacked
without such requests for repairs and improvements, and `ask` decides again and writes the tasks. All it needs is the
log: no device.
"""

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwright.agent.log.store import Journal, RunLog
from kernelwright.agent.providers import AnswerPending
from kernelwright.agent.providers.files import TASKS, FilesProvider
from kernelwright.agent.replay import recorded_decider
from kernelwright.agent.strategies import Stop


def without_open(rows: Sequence[Sequence[Any]], answers: Collection[str]) -> list[Sequence[Any]]:
    """Leave requests out that start from an earlier attempt, have no answer's file and no later event.

    `rows`: seq, time, kind, problem, attempt and payload of each event; `answers`: names of files.
    """
    last = {(row[3], row[4]): row[0] for row in rows}
    kept = []
    for row in rows:
        seq, _, kind, problem, attempt, payload = row
        if kind == "asked" and last[problem, attempt] == seq:
            body = json.loads(payload)
            if body["ask"]["parent"] and not any(body["request_digest"][:16] in name for name in answers):
                continue
        kept.append(row)
    return kept


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
