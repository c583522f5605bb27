"""What happened to the attempts of a run, read from its log by a few queries: folding many takes minutes."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.run_log import DATABASE
from kernelwright.evals.figures.metrics import Effort, total_cost
from kernelwright.sandbox.verdict.verdicts import Verdict

VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)


@contextmanager
def reading(folder: Path) -> Iterator["Reader"]:
    """The queries over the log of the run in `folder`. Raises `RunLogError` where it cannot be read."""
    path = folder / DATABASE
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)
    except sqlite3.Error as error:
        raise RunLogError(f"cannot read {path} ({error}); check that it exists, and its permissions") from error
    with closing(connection):
        yield Reader(connection)


class Found(NamedTuple):
    """A verdict in the log."""

    seq: int
    outcome: str
    """`passed` or the stage."""


class Steps:
    """What happened to the attempts of one problem, by their numbers."""

    def __init__(self) -> None:
        self.judged: dict[int, Found] = {}
        self.confirmed: dict[int, Found] = {}
        """The second verdict of an attempt, by a fresh judge."""
        self.same_as: dict[int, int] = {}
        """By attempt, the earlier one with the same candidate, whose verdicts are its own too."""
        self.without: set[int] = set()
        self.tuned: set[int] = set()
        """Attempts that vary a candidate's constants: nobody was asked for them."""
        self.costs: dict[int, float | None] = {}
        self.tokens: list[int | None] = []
        self.kept: tuple[int, int] | None = None
        """Seq of the last `kept` event, and its attempt."""

    def ruling(self, number: int) -> Found:
        """The verdict that counts of an attempt that has one, as `Attempt.ruling`."""
        return self.confirmed.get(self.same_as.get(number, number)) or self.judged[number]

    @property
    def asked(self) -> dict[int, str]:
        """The outcome of each attempt that a model was asked for and that has a verdict."""
        return {number: self.ruling(number).outcome for number in self.judged if number not in self.tuned}

    @property
    def outcomes(self) -> dict[str, int]:
        """How many finished attempts ended in which way."""
        counts: dict[str, int] = defaultdict(int)
        for outcome in self.asked.values():
            counts[outcome] += 1
        if self.without:
            counts["no candidate"] = len(self.without)
        return dict(counts)

    def effort(self, number: int) -> Effort:
        """Finished attempts up to and with one, and what all replies until then cost, advice included."""
        attempts = sum(1 for one in (*self.asked, *self.without) if one <= number)
        return Effort(attempts=attempts, cost_usd=total_cost([self.costs[one] for one in self.costs if one <= number]))


class Reader:
    """The few queries that the facts need. They read the log's events as JSON, in one pass each."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def last_event(self) -> int:
        """Seq of the last event."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def steps(self) -> dict[str, Steps]:
        """By problem."""
        found: dict[str, Steps] = defaultdict(Steps)
        query = """SELECT kind, problem, attempt, seq,
            CASE WHEN kind = 'judged' THEN json_extract(payload, '$.same_as') END,
            CASE WHEN kind IN ('judged', 'confirmed') THEN
                coalesce(json_extract(payload, '$.verdict.stage'), json_extract(payload, '$.verdict.outcome'))
            WHEN kind = 'asked' THEN json_extract(payload, '$.ask.role')
            WHEN kind IN ('replied', 'replied_again') THEN json_extract(payload, '$.reply.usage') END
            FROM events WHERE attempt IS NOT NULL ORDER BY seq"""
        for kind, problem, attempt, seq, same_as, value in self._rows(query):
            if same_as is not None:
                found[problem].same_as[attempt] = same_as
            _take(found[problem], kind, attempt, Found(seq, value))
        return found

    def verdict(self, seq: int) -> Verdict:
        """The verdict of the event with that seq, `judged` or `confirmed`."""
        return VERDICT.validate_json(
            self._rows("SELECT json_extract(payload, '$.verdict') FROM events WHERE seq = ?", (seq,))[0][0]
        )

    def candidate(self, problem: str, attempt: int) -> str:
        """The digest of an attempt's candidate."""
        query = """SELECT json_extract(payload, '$.candidate.digest') FROM events
            WHERE problem = ? AND attempt = ? AND kind = 'extracted'"""
        return str(self._rows(query, (problem, attempt))[0][0])

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise RunLogError(
                f"the log of the run cannot be read ({error}); restore it or leave the run out"
            ) from error


USAGE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _take(steps: Steps, kind: str, attempt: int, found: Found) -> None:
    seq, value = found
    match kind:
        case "judged":
            steps.judged[attempt] = found
        case "confirmed":
            steps.confirmed[attempt] = found
        case "replied" | "replied_again":
            _take_usage(steps, attempt, value)
        case "kept":
            steps.kept = (seq, attempt)
        case "not_extracted":
            steps.without.add(attempt)
        case "asked" if value == "tune":
            steps.tuned.add(attempt)


def _take_usage(steps: Steps, attempt: int, text: str | None) -> None:
    usage = USAGE.validate_json(text) if text else {}
    before, cost = steps.costs.get(attempt, 0.0), usage.get("cost_usd")
    steps.costs[attempt] = None if before is None or cost is None else before + cost
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    steps.tokens.append(None if read is None or written is None else read + written)
