"""A batch: many candidate files judged in one go, builds side by side and timing one at a time.

What was judged before under the same conditions is taken from the record. Nothing that one candidate does ends the
batch; what the machine or a problem lacks is told for each candidate that it concerns, and tried again next time.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evals.collecting import CandidateFile, Collected, candidate_of, read_source, source_digest
from evals.harness import Conditions
from evals.judgements import Judgement, Judgements
from evals.measured import Measured
from problems import Problem
from sandbox.errors import BrokenProblem, MachineError
from sandbox.machine import processor_name, require_tools
from sandbox.settings import Settings
from sandbox.verdict import Candidate, Verdict

if TYPE_CHECKING:
    from sandbox.judge import Judge
    from sandbox.stages import Built

DATABASE = "scores.db"
NOT_JUDGED = "not_judged"
"""The outcome of a file that has no verdict, since the machine, the problem or the file itself cannot be used."""


class Shard(NamedTuple):
    """Part `number` (from 1) of `parts`: which files it has depends on their names alone."""

    number: int
    parts: int

    def has(self, file: CandidateFile) -> bool:
        """Whether the file belongs to this part."""
        digest = hashlib.sha256(f"{file.problem}\0{file.name}".encode()).digest()
        return int.from_bytes(digest[:8]) % self.parts == self.number - 1


class Scored(NamedTuple):
    """One file of the batch is done."""

    file: CandidateFile
    report: dict[str, Any]
    """The judge's report; for a file without a verdict only `outcome` (`not_judged`) and `reason`."""
    measured: Measured | None
    """None for a file without a verdict."""
    cached: bool

    @property
    def line(self) -> dict[str, Any]:
        """What `score --json` prints."""
        return {"problem": self.file.problem, "candidate": self.file.name} | self.report


class Waiting(NamedTuple):
    """Files with one and the same source, to be judged once."""

    files: list[CandidateFile]
    source: str


class Batch:
    """One pass over candidate files. `on_done` hears of each file once, cached ones first."""

    def __init__(self, store: Judgements, settings: Settings, builders: int, on_done: Callable[[Scored], None]) -> None:
        self.store = store
        self.settings = settings
        self.builders = builders
        self.on_done = on_done
        self.conditions = Conditions.here(device_of(settings), settings.model_dump(mode="json"))

    def run(self, collected: Collected, files: Sequence[CandidateFile]) -> None:
        """Report on every file; judge those that have no verdict under these conditions."""
        waiting: dict[str, dict[str, Waiting]] = {}
        for file in files:
            if file.problem in collected.broken:
                self._unjudged([file], collected.broken[file.problem])
                continue
            try:
                source = read_source(file.path)
            except OSError as error:
                self._unjudged([file], f"the file cannot be read ({error.strerror}); check it and its permissions")
                continue
            digest = source_digest(source)
            known = self.store.known(self.conditions.key(collected.problems[file.problem].digest, digest))
            if known is not None:
                self.on_done(Scored(file, *known, cached=True))
            else:
                same = waiting.setdefault(file.problem, {}).setdefault(digest, Waiting([], source))
                same.files.append(file)
        for name, group in waiting.items():
            self._judge_group(collected.problems[name], list(group.values()))

    def _judge_group(self, problem: Problem, group: list[Waiting]) -> None:
        from sandbox.judge import Judge

        todo = list(group)
        judge = Judge(problem, self.settings)
        try:
            while todo:
                self._judge_wave(judge, todo)
        except (BrokenProblem, MachineError) as error:
            self._unjudged([file for waiting in todo for file in waiting.files], str(error))
        finally:
            judge.close()

    def _judge_wave(self, judge: "Judge", todo: list[Waiting]) -> None:
        """Build the first few side by side; when all builds are done, time one after the other on a machine left alone.

        Takes off `todo` what is done.
        """
        _ = judge.reference  # before the threads, of which each would start one
        wave = todo[: self.builders]
        with ThreadPoolExecutor(self.builders) as pool:
            builds = [pool.submit(self._build, judge, waiting.source) for waiting in wave]
        try:
            while builds:
                self._finish(judge, todo[0], builds.pop(0))
                todo.pop(0)
        finally:
            for left in builds:
                if left.exception() is None:
                    left.result().close()

    @staticmethod
    def _build(judge: "Judge", source: str) -> "Built":
        candidate = candidate_of(source)
        require_tools(candidate.language)
        return judge.build(candidate)

    def _finish(self, judge: "Judge", waiting: Waiting, build: "Future[Built]") -> None:
        try:
            built = build.result()
            with device_turn(self.conditions.device):
                verdict = judge.evaluate(built)
        except BrokenProblem:
            raise
        except MachineError as error:
            self._unjudged(waiting.files, str(error))
        except Exception as error:  # one candidate, whatever it met, must not end a batch of thousands
            judge.close()
            self._unjudged(
                waiting.files, f"the judge itself failed ({type(error).__name__}: {error}); please report it"
            )
        else:
            self._record(judge.problem, waiting, built.candidate, verdict)

    def _record(self, problem: Problem, waiting: Waiting, candidate: Candidate, verdict: Verdict) -> None:
        first = waiting.files[0]
        judgement = Judgement(
            problem=first.problem,
            problem_digest=problem.digest,
            candidate=first.name,
            candidate_digest=candidate.digest,
            conditions=self.conditions,
            time=datetime.now(UTC),
            verdict=verdict,
        )
        found = self.store.add(judgement)
        for file in waiting.files:
            self.on_done(Scored(file, *found, cached=False))

    def _unjudged(self, files: list[CandidateFile], reason: str) -> None:
        for file in files:
            self.on_done(Scored(file, {"outcome": NOT_JUDGED, "reason": reason}, None, cached=False))


def device_of(settings: Settings) -> str:
    """The name of what candidates are timed on."""
    if not settings.gpu:
        return processor_name()
    import torch

    return str(torch.cuda.get_device_name())


@contextmanager
def device_turn(device: str) -> Iterator[None]:
    """Wait until no other process of this user times on the device: two at once would slow each other."""
    name = hashlib.sha256(device.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"kernelwright-{os.getuid()}-{name}.turn"
    with closing(path.open("a")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
