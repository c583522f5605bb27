"""The run's record as it ships: every attempt with reply, source and verdicts, raw samples and all, as one file.

Lines of JSON, compressed, with the same bytes for the same record. Prompts are left out, since they hold texts of the
benchmark: their digests stay, and the prompts can be rendered again.
"""

import gzip
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ValidationError

from kernelwright.agent.log.events import MeasuredProblem
from kernelwright.agent.log.records import Attempt, Usage
from kernelwright.agent.log.store import Header, RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.verdict_store import ProblemSummary, run_summary
from kernelwright.problems import Problem, ProblemError
from kernelwright.problems.problem import Record
from kernelwright.prompts.brief import estimated_tokens

L = TypeVar("L", bound=BaseModel)


class Answered(Record):
    """An attempt, with the texts that its record names by digest."""

    attempt: Attempt
    reply: str | None
    """What the model wrote; None where nothing came."""
    source: str | None
    """The candidate; None where the reply held none."""
    prompt_tokens: int
    reply_tokens: int
    """As the provider says; where it does not, estimated from the length of the text."""


class Searched(Record):
    """A problem of a run, and all that came of it. A line of the file."""

    run: str
    """Its name and when it began: two runs may have one name."""
    problem: str
    address: str
    """As its benchmark says, such as `level1/5`; else its name."""
    title: str
    dtype: str
    """`float32` stands for as it comes."""
    stopped: str | None
    """Why the search ended; None where answers are still to come, or the machine failed and it is to be resumed."""
    facts: ProblemSummary
    header: dict[str, Any]
    """That of the run: everything chosen, device, versions, commit."""
    ended: AwareDatetime
    """Of the last event."""
    measured: MeasuredProblem | None
    """What PyTorch took before the first answer, by a brief look."""
    attempts: tuple[Answered, ...]
    source_sha256: str | None = None
    """Of the problem's file, as 64 hex digits; None in a record from before it was kept."""

    @property
    def place(self) -> tuple[str, str, int, str]:
        """For an order that is the same everywhere: by dtype as they are listed, level, number."""
        level, _, number = self.address.partition("/")
        as_they_come_first = "" if self.dtype == "float32" else self.dtype
        return as_they_come_first, level, int(number) if number.isdecimal() else 0, self.run


def searched(folder: Path) -> list[Searched]:
    """The record of each problem of a run. Raises `RunLogError`, and `ProblemError` for what no judge has judged."""
    facts = {one.problem: one for one in run_summary(folder).problems}
    with RunLog.open(folder) as log:
        if log.header.device == "simulated":
            raise ProblemError(f"{folder} played a made-up landscape; give a run whose candidates were judged")
        return [_searched(log, log.problem(name), facts[name]) for name in log.header.problems]


def _searched(log: RunLog, problem: Problem, facts: ProblemSummary) -> Searched:
    events = list(log.events(problem.name))
    view = fold(problem.name, events)
    return Searched(
        run=f"{log.header.run_id} of {log.header.started:%Y-%m-%d %H:%M}",
        problem=problem.name,
        address=problem.origin.id if problem.origin else problem.name,
        title=problem.origin.title.removesuffix(".py") if problem.origin else problem.name,
        source_sha256=hashlib.sha256(problem.source.encode()).hexdigest(),
        dtype=problem.dtype or "float32",
        stopped=None if view.fault == "machine" else view.stopped,
        facts=facts,
        header=_header(log.header),
        ended=view.last_event or log.header.started,
        measured=view.measured,
        attempts=tuple(_answered(log, attempt) for attempt in view.attempts),
    )


def _header(header: Header) -> dict[str, Any]:
    found: dict[str, Any] = header.model_dump(mode="json")
    del found["problems"]  # each line has its own
    return found


def _answered(log: RunLog, attempt: Attempt) -> Answered:
    reply = log.reply(attempt.reply_digest).text if attempt.reply_digest else None
    usage = attempt.reply.usage if attempt.reply else Usage()
    asked, said = usage.input_tokens, usage.output_tokens
    return Answered(
        attempt=attempt,
        reply=reply,
        source=log.text(attempt.candidate.digest) if attempt.candidate else None,
        prompt_tokens=estimated_tokens(log.text(attempt.prompt.digest)) if asked is None else asked,
        reply_tokens=estimated_tokens(reply or "") if said is None else said,
    )


def write_lines(path: Path, lines: Iterable[BaseModel]) -> None:
    """Write a compressed file of lines, whole or not at all, with no time and no name in it."""
    write_compressed(path, "".join(line.model_dump_json() + "\n" for line in lines))


def write_compressed(path: Path, text: str) -> None:
    """Write a compressed text, whole or not at all, with no time and no name in it."""
    scrap = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scrap.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
        os.replace(scrap, path)  # noqa: PTH105 - a reader sees the old file or the new one
    finally:
        scrap.unlink(missing_ok=True)


def read_lines(path: Path, parse: Callable[[bytes], L]) -> Iterator[L]:
    """The lines of such a file; none where there is no file. Raises `ProblemError` for one that can not be read."""
    if not path.exists():
        return
    try:
        with gzip.open(path) as file:
            for line in file:
                yield parse(line)
    except (OSError, EOFError, ValidationError) as error:
        raise ProblemError(
            f"{path} can not be read ({type(error).__name__}); restore it from the repository, or make it anew"
        ) from None
