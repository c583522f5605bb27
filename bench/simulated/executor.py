"""An executor that only takes time, in the loop's own seconds: the dispatcher on more devices than there are.

It is run under `bench.simulated.clock`, whose hours pass in seconds.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelwright.agent.providers.kinds.simulated import EVIDENCE
from kernelwright.problems import Problem
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.dispatcher import Dispatcher, Warmth
from kernelwright.sandbox.pool.executor import Answer, Conditions, Device, Lost, Product, Stage, Work
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed

VERDICT = Failed(stage="check", reason="simulated", evidence=EVIDENCE)
SPREAD = 0.5
"""Simulated times lie within this share of their mean, evenly."""


class Times(Record):
    """Mean seconds of each part."""

    build_s: float = 20.0
    """One build, alone on its core."""
    judge_s: float = 12.0
    """Load, check and time one candidate, with the problem's references at hand."""
    cold_s: float = 6.0
    """Starting the references of a problem on a device."""
    latency_s: float = 30.0
    """From an ask to its answer."""


@dataclass
class SimulatedExecutor:
    """See `Executor`."""

    times: Times
    count: int
    builders: int
    kinds: tuple[str, ...] = ("simulated",)
    takes_turns: bool = False
    seed: int = 0
    losing: Callable[[Stage, Work], bool] = lambda stage, work: False
    """Asked at the end of each stage: whether the worker is lost now."""
    _rng: random.Random = field(init=False)
    _warmth: Warmth = field(default_factory=Warmth)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def open(self) -> tuple[Device, ...]:
        """Devices of the kinds in turn."""
        return tuple(
            Device(kind=kind, ordinal=ordinal, conditions=Conditions.here(kind, {}))
            for ordinal in range(self.count)
            for kind in (self.kinds[ordinal % len(self.kinds)],)
        )

    async def build(self, work: Work) -> Answer | Product:
        """Takes `build_s`."""
        await self._spend("build", self.times.build_s, work)
        return Product(work.candidate.digest)

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        """Takes `judge_s`, and `cold_s` where the device does not have the problem's references."""
        warm = self._warmth.use(device.name, work.problem.digest)
        await self._spend(stage, self.times.judge_s + (0.0 if warm else self.times.cold_s), work)
        return Answer(verdict=VERDICT)

    async def _spend(self, stage: Stage, mean_s: float, work: Work) -> None:
        await asyncio.sleep(mean_s * self._rng.uniform(1 - SPREAD, 1 + SPREAD))
        if self.losing(stage, work):
            raise Lost("simulated")

    async def revive(self, device: Device) -> bool:
        """Takes `cold_s`."""
        self._warmth.forget(device.name)
        await asyncio.sleep(self.times.cold_s)
        return True

    def release(self, problem: Problem) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is left behind."""


class Load(Record):
    """How a simulated run went."""

    judged: int
    simulated_s: float
    busy: float
    """The share of the devices' time that something ran on them, from the first ask to the last verdict."""
    an_hour: float
    """Candidates judged in an hour, from the first quarter of the verdicts to the third: without start and end."""


async def search_many(executor: SimulatedExecutor, problems: int, attempts: int, slots: int) -> Load:
    """`problems` searches at once, each with `slots` attempts in flight: ask, wait for the answer, judge."""
    loop = asyncio.get_running_loop()
    rng = random.Random(executor.seed + 1)
    start = loop.time()
    async with Dispatcher(executor) as dispatcher:
        ended: list[float] = []

        async def attempt_all(problem: Problem, numbers: list[int]) -> None:
            while numbers:
                number = numbers.pop()
                await asyncio.sleep(executor.times.latency_s * rng.uniform(1 - SPREAD, 1 + SPREAD))
                await dispatcher.judge(Work(problem=problem, candidate=Candidate(source=f"{problem.name} {number}")))
                ended.append(loop.time())

        searches = []
        for at in range(problems):
            problem = Problem(name=f"p{at}", title="", family="simulated", size="cpu", source=str(at))
            numbers = list(range(attempts))
            searches += [attempt_all(problem, numbers) for _ in range(slots)]
        await asyncio.gather(*searches)
        spent = loop.time() - start
        busy = sum(dispatcher.tally.busy_s.values()) / (executor.count * spent)
    first, last = len(ended) // 4, 3 * len(ended) // 4
    an_hour = 3600 * (last - first) / (ended[last] - ended[first])
    return Load(judged=dispatcher.tally.ended["time"], simulated_s=spent, busy=busy, an_hour=an_hour)
