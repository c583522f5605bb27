"""The search in one command: strategies, a full judge, kills, faults and cut replies; about three minutes.

Strategies are compared with 10 and 40 attempts, and the default with 160 too; `python -m bench strategies` takes 160
for all. What the simulation can not show: docs/search.md.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, Protocol

from bench import load
from bench.strategies import briefly
from kernelwright.agent.replies import Extraction, extract
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed
from tests.agent.replies.test_extraction import ACCEPTED, REJECTED, kernel_called
from tests.agent.replies.test_extraction_truncation import cuts
from tests.sandbox.conftest import QUICK
from tests.support.faults import FAULTS, PROBLEM, missing_words, with_fault
from tests.support.search import CONFIGS, killed_searches, outline

KILLS = 50
LEAST_SHARE, LEAST_RECOVERED = 0.95, 0.98
CALL_TIMEOUT_S = 6.0


class Part(Protocol):
    """One of the promises."""

    @property
    def holds(self) -> bool:
        """Whether it is kept."""
        ...


class Whole(NamedTuple):
    """All parts, in their order."""

    parts: tuple[Part, ...]

    @property
    def holds(self) -> bool:
        """Whether all promises are kept."""
        return all(part.holds for part in self.parts)

    def __str__(self) -> str:
        return "\n".join(str(part) for part in self.parts)


class Killed(NamedTuple):
    """Searches that were killed and gone on with."""

    kind: str
    kills: int
    runs: int
    same: int
    """Runs that ended with the asks and outcomes of the uninterrupted one, each answer taken once, and that replay."""

    @property
    def holds(self) -> bool:
        """Whether all of them did."""
        return self.kills >= KILLS and self.same == self.runs

    def __str__(self) -> str:
        return (
            f"  {self.kind}: {self.kills} kills in {self.runs} runs, {self.same} ended as if nothing had happened, and "
            "their replays gave the same log"
        )


class Told(NamedTuple):
    """Faults in a right kernel, and what the repair prompt says of each."""

    missing: dict[str, list[str]]
    """By fault, the deciding words that it lacks."""

    @property
    def holds(self) -> bool:
        """Whether the deciding line is there nearly always."""
        return self._told / len(self.missing) >= LEAST_SHARE

    @property
    def _told(self) -> int:
        return sum(1 for words in self.missing.values() if not words)

    def __str__(self) -> str:
        lines = [f"  the repair prompt says what decides for {self._told} of {len(self.missing)} faults"]
        return "\n".join(lines + [f"    {name}: lacks {words}" for name, words in self.missing.items() if words])


class Read(NamedTuple):
    """Replies of many shapes, and replies that were cut."""

    shapes: int
    right: int
    cuts: int
    wrong: int
    """Cut replies that gave another source than the whole reply."""
    recoverable: int
    recovered: int

    @property
    def holds(self) -> bool:
        """Whether no source is wrong, and what can be recovered is."""
        return self.right == self.shapes and not self.wrong and self.recovered >= LEAST_RECOVERED * self.recoverable

    def __str__(self) -> str:
        return (
            f"  {self.right} of {self.shapes} shapes of replies are read right; of {self.cuts} cuts {self.wrong} give "
            f"a wrong source, and {self.recovered} of the {self.recoverable} recoverable ones theirs"
        )


def run() -> Whole:
    """All parts, one after the other."""
    parts: dict[str, Callable[[], list[Part]]] = {
        "strategies": lambda: [briefly()],
        "load": lambda: [apart(load.run)],
        "kills": lambda: [kills(kind) for kind in CONFIGS],
        "faults": lambda: [faults()],
        "replies": lambda: [replies()],
    }
    found: list[Part] = []
    for name, part in parts.items():
        start = time.monotonic()
        found += part()
        print(f"  ({name}: {time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
    return Whole(tuple(found))


def apart(work: Callable[[], Part]) -> Part:
    """In a process of its own: what this one has loaded would hide what the work needs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work).result()


def kills(kind: str) -> Killed:
    """SIGKILL at random points of the code, and on with it, until the search ends."""
    with tempfile.TemporaryDirectory() as folder:
        asks, ends, ended = killed_searches(Path(folder), CONFIGS[kind], KILLS)
        same = [
            [attempt.ask for attempt in one.view.attempts] == asks
            and outline(one.view) == ends
            and one.answered_once
            and one.replays
            for one in ended
        ]
    return Killed(kind, sum(one.deaths for one in ended), len(ended), sum(same))


def faults() -> Told:
    """Each fault judged, and its repair prompt rendered."""
    missing = {}
    with Judge(PROBLEM, QUICK.model_copy(update={"call_timeout_s": CALL_TIMEOUT_S})) as judge:
        for fault in FAULTS:
            verdict = judge.judge(Candidate(source=with_fault(fault), language="cpp"))
            missing[fault] = missing_words(fault, verdict) if isinstance(verdict, Failed) else ["a failure"]
    return Told(missing)


def replies() -> Read:
    """The corpus of the tests."""
    taken = [extract(reply) for reply in ACCEPTED.values()]
    right = sum(isinstance(one, Extraction) and kernel_called(one.source) == "relu_final" for one in taken)
    refused = [(extract(one.reply), one.kind) for one in REJECTED.values()]
    right += sum(not isinstance(found, Extraction) and found.kind == kind for found, kind in refused)
    found = [
        (isinstance(one, Extraction), isinstance(one, Extraction) and one.source == source, whole)
        for one, source, whole in cuts()
    ]
    return Read(
        shapes=len(taken) + len(refused),
        right=right,
        cuts=len(found),
        wrong=sum(given and not same for given, same, _ in found),
        recoverable=sum(whole for *_, whole in found),
        recovered=sum(same for _, same, whole in found if whole),
    )
