"""From one device to ten thousand: what each part bears here, the capacity model against simulation, and real devices.

`python -m bench scaling`. Where there are CUDA devices, the local executor judges the same candidates on 1, 2, 4 and 8
of them in one sitting, with every build cached; without any, on declared parts of the processor, which proves nothing
about GPUs. `KERNELWRIGHT_PER_DEVICE` is the number of candidates for each device of a round (12). See docs/scaling.md.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.simulated.capacity import Costs, Fleet, bottleneck, cold_share
from bench.simulated.clock import run_simulated
from bench.simulated.executor import Load, SimulatedExecutor, Times, search_many
from bench.simulated.many import run_many
from kernelwright.agent.log.config import SearchConfig
from kernelwright.evals.scores.judgements import Judgement, Judgements
from kernelwright.problems import Problem
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Answer, Conditions, LocalExecutor, Question, Work, own_cores
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import (
    Authenticity,
    Candidate,
    Evidence,
    Language,
    Measurement,
    Pairing,
    Passed,
)

WANTED_BUSY = 0.9
WANTED_LINEAR = 0.9
SIZES = (1, 10, 100, 1000, 10000)
TIMES = Times()
SLOTS = 4
STORED = 400
LEAST_RATIO, MOST_RATIO = 0.85, 1.05
"""What the simulation may reach of the model's bound: queues cost a little, and times are drawn at random."""
PER_DEVICE, LEAST_PER_DEVICE = "12", 4
EXAMPLES = Path(__file__).parent.parent / "prompts" / "examples"
QUICK = Settings(min_pairs=4, max_pairs=4, worker_pairs=1, time_budget_s=0.1, without=("placebo",))


class Point(NamedTuple):
    """One size: what the model says and what the simulation did, in candidates an hour."""

    fleet: Fleet
    part: str
    bound: float
    load: Load

    @property
    def ratio(self) -> float:
        """Simulation over model; above 1 the model would be wrong."""
        return self.load.an_hour / self.bound


class Round(NamedTuple):
    """The same candidates for each device, on so many devices."""

    devices: int
    seconds: float
    """Of the whole round."""
    finished: dict[str, list[float]]
    """By device, when each of its verdicts came, in seconds."""

    @property
    def a_minute(self) -> float:
        """Candidates judged in a minute by all devices: for each, from its first verdict to its last.

        The whole round also has a start, and an end at which some devices have nothing left, each up to one verdict
        long however long the round is.
        """
        several = (times for times in self.finished.values() if len(times) > 1)
        return 60 * sum((len(times) - 1) / (max(times) - min(times)) for times in several)

    @property
    def whole_a_minute(self) -> float:
        """The same over the whole round, its end too."""
        return 60 * sum(map(len, self.finished.values())) / self.seconds


class Scaling(NamedTuple):
    """All that was measured."""

    driver_s: float
    engine_s: float
    store_s: float
    points: tuple[Point, ...]
    goal: Load
    rounds: tuple[Round, ...]
    cuda: bool

    @property
    def holds(self) -> bool:
        """Whether the model bounds every simulation, the goal's devices are busy, and real GPUs scale."""
        modelled = all(LEAST_RATIO <= point.ratio <= MOST_RATIO for point in self.points)
        return modelled and self.goal.busy > WANTED_BUSY and (not self.cuda or self.linear >= WANTED_LINEAR)

    @property
    def linear(self) -> float:
        """The rate of the most devices over that many times the rate of one."""
        most = max(one.devices for one in self.rounds)
        return self._rate(most) / (most * self._rate(1))

    def _rate(self, devices: int, whole: bool = False) -> float:
        rounds = [one for one in self.rounds if one.devices == devices]
        return statistics.fmean(one.whole_a_minute if whole else one.a_minute for one in rounds)

    def __str__(self) -> str:
        lines = [
            f"  driver of a batch: {1e3 * self.driver_s:.2f} ms a candidate; of a search: {1e3 * self.engine_s:.1f} ms",
            f"  store of verdicts: {1e3 * self.store_s:.2f} ms a verdict",
            "  devices  builders  in flight  model/h      simulated/h  ratio  busy   limited by",
        ]
        for fleet, part, bound, load in self.points:
            sizes = f"{fleet.devices:>7}  {fleet.builders:>8}  {fleet.in_flight:>9}"
            rates = f"{bound:>11.0f}  {load.an_hour:>11.0f}  {load.an_hour / bound:>5.2f}  {load.busy:>5.1%}"
            lines.append(f"  {sizes}  {rates}  {part}")
        lines.append(f"  250 problems x 100 attempts on 64 devices: devices busy {self.goal.busy:.1%} of the time")
        what = "CUDA devices" if self.cuda else "parts of the processor"
        for devices in sorted({one.devices for one in self.rounds}):
            steady, whole = self._rate(devices), self._rate(devices, whole=True)
            rates = f"{steady:.1f} candidates a minute, {whole:.1f} with a round's start and end"
            lines.append(f"  {devices} {what}, builds cached: {rates}")
        lines.append(f"  the most of these against one: {self.linear:.2f} of linear, start and end left out")
        return "\n".join(lines)


def run() -> Scaling:
    """Measure the parts, simulate the sizes, judge on what devices there are."""
    driver_s, searching_s, store_s = dispatch_s(), engine_s(), commit_s()
    points = tuple(simulate(devices, driver_s, store_s) for devices in SIZES)
    goal = run_simulated(search_many(SimulatedExecutor(TIMES, 64, 192), 250, 100, SLOTS))
    count = cuda_devices()
    sizes = [size for size in (1, 2, 4, 8) if size <= (count or min(2, len(own_cores())))]
    rounds = asyncio.run(judge_rounds(sizes, count > 0))
    return Scaling(driver_s, searching_s, store_s, points, goal, tuple(rounds), count > 0)


def dispatch_s(candidates: int = 3000) -> float:
    """Processor seconds of the driver for one candidate: choosing, two questions and two answers."""
    start = time.process_time()
    run_simulated(search_many(SimulatedExecutor(TIMES, 64, 192), candidates // 100, 100, 16))
    chosen_s = (time.process_time() - start) / candidates
    work = _works("python", 1)[0]
    answers = Answer(product="0" * 64).model_dump_json(), Answer(verdict=_passing()).model_dump_json()
    start = time.process_time()
    for _ in range(STORED):
        Question(stage="build", work=work).model_dump_json()
        Question(stage="time", work=work).model_dump_json()
        for answer in answers:
            Answer.model_validate_json(answer)
    return chosen_s + (time.process_time() - start) / STORED


def engine_s(problems: int = 10) -> float:
    """Processor seconds of a search's driver for one attempt: deciding, rendering the prompt, extracting, the log."""
    config = SearchConfig(model="simulated", attempts=20, slots=2, problems_at_once=16, patience=20)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        load = run_many(Path(folder) / "run", problems, config)
        return (time.process_time() - start) / load.attempts


def commit_s() -> float:
    """Seconds to commit one passing verdict of the usual size to a store of verdicts on this disk."""
    verdict = _passing()
    conditions = Conditions.here("bench", {})
    with tempfile.TemporaryDirectory() as folder, Judgements(Path(folder) / "scores.db") as store:
        start = time.perf_counter()
        for number in range(STORED):
            store.add(
                Judgement(
                    problem="p",
                    problem_digest="p",
                    candidate=str(number),
                    candidate_digest=str(number),
                    conditions=conditions,
                    time=datetime.now(UTC),
                    verdict=verdict,
                )
            )
        return (time.perf_counter() - start) / STORED


def _passing() -> Passed:
    """A passing verdict with as many samples as a judging takes at most."""
    samples = tuple(1.0 + at / 100 for at in range(60))
    pairing = Pairing(baseline="eager", candidate_ms=samples, baseline_ms=samples, workers=(0,) * 60)
    evidence = Evidence(
        jail=(), seconds={}, authenticity=Authenticity(label="unknown"), problem_status=None, versions={}
    )
    return Passed(measurement=Measurement(pairings=(pairing,), threads=1), evidence=evidence)


def simulate(devices: int, driver_s: float, store_s: float) -> Point:
    """One size, with builders and asks for each device in the proportions of docs/scaling.md."""
    builders, problems, attempts = 3 * devices, max(4, 2 * devices), 24 if devices < 1000 else 16
    share = cold_share(devices, problems, problems * attempts)
    costs = Costs(
        build_s=TIMES.build_s,
        judge_s=TIMES.judge_s,
        cold_s=TIMES.cold_s,
        cold_share=share,
        latency_s=TIMES.latency_s,
        driver_s=driver_s,
        store_s=store_s,
    )
    fleet = Fleet(devices=devices, builders=builders, in_flight=problems * SLOTS)
    # In simulated time the driver and the store take none, so the model is compared without them.
    free = costs.model_copy(update={"driver_s": 1e-9, "store_s": 1e-9})
    load = run_simulated(search_many(SimulatedExecutor(TIMES, devices, builders), problems, attempts, SLOTS))
    return Point(fleet, bottleneck(fleet, costs)[0], bottleneck(fleet, free)[1], load)


def cuda_devices() -> int:
    """How many CUDA devices torch sees."""
    import torch

    return int(torch.cuda.device_count())


async def judge_rounds(sizes: list[int], cuda: bool) -> list[Round]:
    """Each size twice, there and back again, after a round that fills the store of builds."""
    per_device = int(os.environ.get("KERNELWRIGHT_PER_DEVICE", PER_DEVICE))
    if per_device < LEAST_PER_DEVICE:
        sys.exit(f"KERNELWRIGHT_PER_DEVICE={per_device} gives no rate; use at least {LEAST_PER_DEVICE}")
    settings = Settings(device="cuda") if cuda else QUICK
    works = _works("cuda" if cuda else "python", per_device * max(sizes))
    await judge_round(settings, works, max(sizes))
    rounds = []
    for devices in (*sizes, *reversed(sizes)):
        rounds.append(await judge_round(settings, works[: per_device * devices], devices))
        last = rounds[-1]
        print(f"  {devices} devices: {last.a_minute:.1f} a minute, {last.whole_a_minute:.1f} with its end", flush=True)
    return rounds


async def judge_round(settings: Settings, works: list[Work], devices: int) -> Round:
    """Judge all of the work on so many devices; processes are started before the clock is."""
    finished: dict[str, list[float]] = {}

    async def judge(dispatcher: Dispatcher, work: Work) -> None:
        found = await dispatcher.judge(work)
        if not isinstance(found.verdict, Passed) or found.device is None:
            raise AssertionError(f"an example that ships does not pass: {found.verdict}")
        finished.setdefault(found.device.name, []).append(time.perf_counter())

    async with Dispatcher(LocalExecutor(settings, len(own_cores()), devices)) as dispatcher:
        await asyncio.gather(*(judge(dispatcher, work) for work in works[:devices]))
        finished.clear()
        start = time.perf_counter()
        await asyncio.gather(*(judge(dispatcher, work) for work in works))
        return Round(devices, time.perf_counter() - start, finished)


def _works(target: Language, count: int) -> list[Work]:
    """So many candidates that differ in a comment alone: each is built and judged for itself.

    For CUDA the example of the prompts; for the processor the reference again, which has nothing to build.
    """
    reference = (EXAMPLES / "cuda" / "reference.py").read_text()
    size = "gpu" if target == "cuda" else "cpu"
    problem = Problem(name=f"example_{target}", title="", family="example", size=size, source=reference)
    itself = reference.replace("class Model(", "class ModelNew(")
    source = (EXAMPLES / "cuda" / "answer.py").read_text() if target == "cuda" else itself
    candidates = [Candidate(source=f"{source}\n# {number}\n", language=target) for number in range(count)]
    return [Work(problem=problem, candidate=candidate) for candidate in candidates]
