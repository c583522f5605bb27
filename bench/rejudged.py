"""A candidate whose build is stored: what its judging costs beside calls.

Of one worker: from the request until its first call could begin. In it are the scan, the stored build looked up,
compared by digest and copied, the start in a jail of its own, the source and its extension loaded, the weights, and
memory lent. Not in it are the calls of candidate and baseline, and the drawing and comparing of values that go with
each. References and zygote are there, as for every candidate but a problem's first.

A verdict takes several workers; what all of them cost so is told beside it, from the record of stages: loading, and
what lies outside every stage (starts, ends, folders, statistics).
"""

import statistics
import time
from typing import NamedTuple

from bench.throughput import CPP, REFERENCE, Target
from kernelwright.problems import Problem
from kernelwright.sandbox.jail.zygote import become_a_judge
from kernelwright.sandbox.judge.judging import STORED, Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed

ROUNDS = 12
LIMIT_MS = 100


class Rejudged(NamedTuple):
    """Milliseconds of each round, by part; and one whole verdict."""

    parts_ms: dict[str, list[float]]
    verdict_s: float
    stages_s: dict[str, float]
    workers: int

    @property
    def ready_ms(self) -> float:
        """The median over rounds of one worker's cost."""
        return statistics.median(map(sum, zip(*self.parts_ms.values(), strict=True)))

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.ready_ms < LIMIT_MS

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {statistics.median(times):.0f}" for name, times in self.parts_ms.items())
        outside = self.verdict_s - sum(self.stages_s.values())
        lost_ms = 1e3 * (outside + self.stages_s.get("load", 0.0) + self.stages_s.get("build", 0.0)) / self.workers
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.stages_s.items())
        return (
            f"  one worker ready to be called: {self.ready_ms:.0f} ms ({parts}; promised: under {LIMIT_MS})\n"
            f"  a whole verdict: {self.verdict_s:.2f} s ({stages}; outside stages {outside:.2f}) with "
            f"{self.workers} workers; start, load and end of each: {lost_ms:.0f} ms"
        )


def run() -> Rejudged:
    """On this machine's processor; under a minute."""
    become_a_judge()
    problem = Problem(name="rejudged", title="", family="bench", size="cpu", source=REFERENCE.format(rows=512))
    candidate = Candidate(source=Target("cpp", CPP, 512, 1, 1, 0).source(0), language="cpp")
    with Judge(problem) as judge:
        judge.start()
        judge.judge(candidate)
        parts: dict[str, list[float]] = {"found and started": [], "loaded": []}
        for _ in range(ROUNDS):
            for name, milliseconds in zip(parts, _ready(judge, candidate), strict=True):
                parts[name].append(milliseconds)
        start = time.perf_counter()
        verdict = judge.judge(candidate)
        verdict_s = time.perf_counter() - start
    if not isinstance(verdict, Passed):
        raise SystemExit(f"the candidate of this bench failed: {verdict.reason}")
    observed = 1
    workers = len(set(verdict.measurement.closest.workers)) + observed
    return Rejudged(parts, verdict_s, verdict.evidence.seconds, workers)


def _ready(judge: Judge, candidate: Candidate) -> tuple[float, float]:
    """Milliseconds of the two parts; the worker is ended outside the clock."""
    start = time.perf_counter()
    built = judge.build(candidate)
    try:
        if built.worker is None or built.ways != (STORED,):
            raise SystemExit("the build of this bench's candidate was not stored")
        there = time.perf_counter()
        judge._load(built, built.worker, judge.reference)
        ready = time.perf_counter()
    finally:
        built.close()
    return 1e3 * (there - start), 1e3 * (ready - there)
