"""Simulated devices and a clock that jumps: hours of a dispatcher on more devices than there are pass in seconds."""

import asyncio
import random
import selectors
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelwright.agent.providers.simulated import EVIDENCE
from kernelwright.sandbox.pool.dispatcher import Dispatcher, Warmth
from kernelwright.sandbox.pool.executor import Answer, Conditions, Device, Lost, Product, Work
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed
from tests.support.problems import tiny_problem

VERDICT = Failed(stage="check", reason="simulated", evidence=EVIDENCE)
SPREAD = 0.5
"""Simulated times lie within this share of their mean, evenly."""


class Jumping(selectors.DefaultSelector):
    """Never waits: the time that it was to wait is added to the clock instead."""

    skipped_s = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left that could happen")
        if not ready and timeout > 0:
            self.skipped_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Knows no threads and processes: use it for code that only sleeps and computes."""

    def __init__(self):
        self.jumping = Jumping()
        super().__init__(self.jumping)

    def time(self):
        return self.jumping.skipped_s


def run_simulated(work):
    """Run a coroutine to its end on a clock that jumps."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)


class Times(NamedTuple):
    """Mean seconds of a build, of judging, of starting a problem's references, and from an ask to its answer."""

    build_s: float = 20.0
    judge_s: float = 12.0
    cold_s: float = 6.0
    latency_s: float = 30.0


@dataclass
class SimulatedExecutor:
    """An executor that only takes time; `losing` says at the end of each stage whether the worker is lost."""

    times: Times
    count: int
    builders: int
    kinds: tuple = ("simulated",)
    alternates: bool = False
    losing: object = lambda stage, work: False
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    warmth: Warmth = field(default_factory=Warmth)

    async def open(self):
        kinds = [self.kinds[ordinal % len(self.kinds)] for ordinal in range(self.count)]
        return tuple(Device(kind=kind, ordinal=n, conditions=Conditions.here(kind, {})) for n, kind in enumerate(kinds))

    async def build(self, work):
        await self.spend("build", self.times.build_s, work)
        return Product(work.candidate.digest)

    async def run(self, stage, work, product, device):
        warm = self.warmth.use(device.name, work.problem.digest)
        await self.spend(stage, self.times.judge_s + (0.0 if warm else self.times.cold_s), work)
        return Answer(verdict=VERDICT)

    async def spend(self, stage, mean_s, work):
        await asyncio.sleep(mean_s * self.rng.uniform(1 - SPREAD, 1 + SPREAD))
        if self.losing(stage, work):
            raise Lost("simulated")

    async def revive(self, device):
        self.warmth.forget(device.name)
        await asyncio.sleep(self.times.cold_s)
        return True

    def release(self, problem):
        """Keep nothing."""

    async def close(self):
        """Leave nothing behind."""


async def search_many(executor, problems, attempts, slots):
    """Search problems side by side; return how many were judged, and the share of the devices' time that was used."""
    loop, rng = asyncio.get_running_loop(), random.Random(1)
    async with Dispatcher(executor) as dispatcher:

        async def attempt_all(problem, numbers):
            while numbers:
                number = numbers.pop()
                await asyncio.sleep(executor.times.latency_s * rng.uniform(1 - SPREAD, 1 + SPREAD))
                await dispatcher.judge(Work(problem=problem, candidate=Candidate(source=f"{problem.name} {number}")))

        asked = [(tiny_problem(str(at), name=f"p{at}"), list(range(attempts))) for at in range(problems)]
        await asyncio.gather(*(attempt_all(*one) for one in asked for _ in range(slots)))
        busy_s = sum(dispatcher.tally.busy_s.values())
        return dispatcher.tally.ended["time"], busy_s / (executor.count * loop.time())
