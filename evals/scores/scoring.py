"""A batch: many candidate files judged in one go, on an executor.

What was judged before under the same conditions is taken from the record. Nothing that one candidate does ends the
batch; what the machine or a problem lacks is told for each candidate that it concerns, and tried again next time.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kernelwright.evals.figures.measured import Measured
from kernelwright.evals.scores.collecting import CandidateFile, Collected, read_source, source_digest
from kernelwright.evals.scores.judgements import Judgement, Judgements
from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.pool.dispatch import DeviceVerdict, Dispatcher
from kernelwright.sandbox.pool.protocol import Conditions, Executor, Unjudged, Work, choose_kind_name
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.verdicts import Candidate

DATABASE = "scores.db"
PROBLEMS_A_DEVICE = 2
"""Problems that are judged side by side, for each of several devices."""
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
    machine_lacks: bool = False
    """Whether there is no verdict since this machine lacks something."""

    @property
    def line(self) -> dict[str, Any]:
        """What `score --json` prints."""
        return {"problem": self.file.problem, "candidate": self.file.name} | self.report


class UnjudgedSource(NamedTuple):
    """Files with one and the same source, to be judged once."""

    files: list[CandidateFile]
    source: str


class Batch:
    """One pass over candidate files. `on_done` hears of each file once, cached ones first."""

    def __init__(self, store: Judgements, on_done: Callable[[Scored], None]) -> None:
        self.store = store
        self.on_done = on_done

    def run(self, collected: Collected, files: Sequence[CandidateFile], executor: Executor, kind: str | None) -> None:
        """Report on every file; judge those that have no verdict under the conditions of the executor's devices.

        `kind` is a part of the name of the devices to judge on, where there are several kinds. Raises `ExecutorError`.
        """
        asyncio.run(self._run(collected, files, Dispatcher(executor, kind)))

    def tell(self, collected: Collected, files: Sequence[CandidateFile], kind: str | None) -> None:
        """Report on every file what is on record from the current judge version; judge nothing."""
        kept = [one for one in self.store.conditions() if one.judge_version == str(JUDGE_VERSION)]
        name = choose_kind_name({one.device for one in kept}, kind) if kept else None
        fitting = [one for one in kept if one.device == name]
        for group in self._not_known(collected, files, fitting):
            self._unjudged(group.files, "no verdict of this version is on record")

    async def _run(self, collected: Collected, files: Sequence[CandidateFile], dispatcher: Dispatcher) -> None:
        async with dispatcher:
            conditions = [device.conditions for device in dispatcher.devices]
            waiting = self._not_known(collected, files, conditions)
            # A device keeps the references of a few problems: one takes a problem after the other, many take many.
            at_once = 1 if len(conditions) == 1 else PROBLEMS_A_DEVICE * len(conditions)
            tasks = [
                asyncio.create_task(self._judge(collected.problems[one.files[0].problem], one, dispatcher))
                for one in interleaved(waiting, at_once)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    def _not_known(
        self, collected: Collected, files: Sequence[CandidateFile], conditions: Sequence[Conditions]
    ) -> list[UnjudgedSource]:
        """What is not on record under any of these conditions, by source; tells of what is, or can not be judged."""
        waiting: dict[tuple[str, str], UnjudgedSource] = {}
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
            known = self.store.known_like(collected.problems[file.problem].digest, digest, conditions)
            if known is not None:
                self.on_done(Scored(file, *known, cached=True))
            else:
                waiting.setdefault((file.problem, digest), UnjudgedSource([], source)).files.append(file)
        return list(waiting.values())

    async def _judge(self, problem: Problem, waiting: UnjudgedSource, dispatcher: Dispatcher) -> None:
        candidate = candidate_of(waiting.source)
        try:
            judged = await dispatcher.judge(Work(problem=problem, candidate=candidate))
        except Unjudged as error:
            self._unjudged(waiting.files, str(error), error.machine_lacks)
        else:
            self._record(problem, waiting, candidate, judged, dispatcher.devices[0].conditions)

    def _record(
        self,
        problem: Problem,
        waiting: UnjudgedSource,
        candidate: Candidate,
        judged: DeviceVerdict,
        otherwise: Conditions,
    ) -> None:
        first = waiting.files[0]
        judgement = Judgement(
            problem=first.problem,
            problem_digest=problem.digest,
            candidate=first.name,
            candidate_digest=candidate.digest,
            conditions=judged.device.conditions if judged.device else otherwise,
            time=datetime.now(UTC),
            verdict=judged.verdict,
        )
        found = self.store.add(judgement)
        for file in waiting.files:
            self.on_done(Scored(file, *found, cached=False))

    def _unjudged(self, files: list[CandidateFile], reason: str, machine_lacks: bool = False) -> None:
        for file in files:
            report = {"outcome": NOT_JUDGED, "reason": reason}
            self.on_done(Scored(file, report, None, cached=False, machine_lacks=machine_lacks))


def interleaved(waiting: Iterable[UnjudgedSource], at_once: int) -> list[UnjudgedSource]:
    """By problem, `at_once` problems at a time: one candidate of each in turn until these problems are done."""
    groups: dict[str, list[UnjudgedSource]] = {}
    for one in waiting:
        groups.setdefault(one.files[0].problem, []).append(one)
    names, found = list(groups), []
    for start in range(0, len(names), at_once):
        together = [groups[name] for name in names[start : start + at_once]]
        for turn in range(max(map(len, together))):
            found += [group[turn] for group in together if turn < len(group)]
    return found
