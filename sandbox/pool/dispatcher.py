"""The `Dispatcher`, which decides what runs on which device, and when; the same for every executor.

Builds are first come, first served, and pause where devices cannot keep up. A free device prefers problems whose
reference processes it has, since starting those takes as long as timing a candidate; but nothing waits for ever. Only
the stage that a lost worker had begun is run again.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from kernelwright.sandbox.pool.executor import (
    Answer,
    Device,
    Executor,
    ExecutorError,
    JobError,
    Lost,
    Product,
    ProductGone,
    Stage,
    Unjudged,
    Work,
    choose_kind,
)
from kernelwright.sandbox.verdict.verdicts import Verdict

KEPT = 4
"""Problems whose reference children a worker keeps; the one used longest ago is ended first."""
CONSIDERED = 64
"""Problems considered for one decision, the longest waiting first, so that thousands cost no more."""
PATIENCE_S = 120.0
"""Work that has waited longer goes first, on any device."""


class Warmth:
    """Known reference processes of each device's worker, which keeps those of the last few problems."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[str, None]] = {}
        self._holders: dict[str, dict[str, None]] = {}
        """The devices that have a problem, in the order in which they began it."""

    def use(self, device: str, problem: str) -> bool:
        """Note that the device begins a problem; return whether it has its references already."""
        kept = self._kept.setdefault(device, OrderedDict())
        warm = problem in kept
        kept[problem] = None
        kept.move_to_end(problem)
        self._holders.setdefault(problem, {})[device] = None
        if len(kept) > KEPT:
            self._drop(device, kept.popitem(last=False)[0])
        return warm

    def forget(self, device: str) -> None:
        for problem in self._kept.pop(device, ()):
            self._drop(device, problem)

    def _drop(self, device: str, problem: str) -> None:
        del self._holders[problem][device]
        if not self._holders[problem]:
            del self._holders[problem]

    def device_for(self, problem: str, idle: Mapping[str, object]) -> str:
        """Return an idle device that has the problem, or the one that has been idle for longest."""
        return next((device for device in self._holders.get(problem, ()) if device in idle), next(iter(idle)))

    def problem_for(self, device: str, waiting: "Mapping[str, Sequence[_Job]]", now: float) -> str:
        """Return what a device should take: what waited too long, else what is warm here, else what few devices have.

        `waiting` holds problems in the order in which they began to wait.
        """
        seen = list(islice(waiting, CONSIDERED))
        oldest = min(seen, key=lambda problem: waiting[problem][0].since)
        if now - waiting[oldest][0].since > PATIENCE_S:
            return oldest
        warm = [problem for problem in self._kept.get(device, ()) if problem in waiting]
        if warm:
            return min(warm, key=lambda problem: waiting[problem][0].since)
        return max(seen, key=lambda problem: len(waiting[problem]) / (1 + len(self._holders.get(problem, ()))))


TRIES = 3
"""Workers that one piece of work may lose before it is given up: it may be the cause."""
Step = Literal["building", "built", "judging", "lost"]
AHEAD = 4
"""Finished builds that may wait, for each device and each builder; more would only fill the disk."""


@dataclass
class Tally:
    """Counts of stages, by name."""

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds, by device, that something was checked or timed on it."""


@dataclass(frozen=True)
class DeviceVerdict:
    """A verdict, and the device that it was reached on; None where it needed none."""

    verdict: Verdict
    device: Device | None


@dataclass(eq=False)
class _Job:
    work: Work
    stage: Stage
    future: "asyncio.Future[DeviceVerdict]"
    on_step: Callable[[Step], None] | None = None
    settles: bool = True
    since: float = 0.0
    """When it began to wait for a device, in the loop's seconds."""
    product: Product = field(default_factory=lambda: Product(""))
    lost: int = 0

    def report(self, step: Step) -> None:
        if self.on_step is not None and not self.future.done():
            self.on_step(step)


class Dispatcher:
    """Judges many candidates at a time on an executor. Use it as an asynchronous context."""

    def __init__(self, executor: Executor, kind: str | None = None, remembers_broken: bool = True) -> None:
        """`remembers_broken`: whether a problem that could not be judged once is not tried again."""
        self.executor = executor
        self.devices: tuple[Device, ...] = ()
        """Those of the kind that is judged on; known inside the context."""
        self.tally = Tally()
        self._kind = kind
        self._warmth = Warmth()
        self._to_build: deque[_Job] = deque()
        self._ready: OrderedDict[str, deque[_Job]] = OrderedDict()
        """Jobs that wait for a device, by their problem's digest."""
        self._waiting = 0
        self._idle: dict[str, Device] = {}
        self._reviving: set[str] = set()
        self._building = self._running = 0
        self._remembers_broken = remembers_broken
        self._broken: dict[str, Unjudged] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Job] = set()
        """Those that a caller waits for."""

    async def __aenter__(self) -> "Dispatcher":
        try:
            self.devices = choose_kind(await self.executor.open(), self._kind)
        except BaseException:
            await self.executor.close()
            raise
        self._idle = {device.name: device for device in self.devices}
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._open:  # what was cancelled here has no result
            _fail(job, ExecutorError("the devices were closed before this was judged; judge it again"))
        await self.executor.close()

    async def judge(
        self, work: Work, stage: Stage = "time", on_step: Callable[[Step], None] | None = None, settles: bool = True
    ) -> DeviceVerdict:
        """Build, and then check or time. Raises `Unjudged`, and `ExecutorError` once no device is left.

        `settles`: whether a problem that cannot be judged with this candidate is refused for later ones too. Cancelling
        the call takes the work back; a stage that has begun is completed.
        """
        job = _Job(work, stage, asyncio.get_running_loop().create_future(), on_step, settles)
        self._to_build.append(job)
        self._open.add(job)
        try:
            self._go_on()
            return await job.future
        finally:
            self._open.discard(job)

    def _go_on(self) -> None:
        if self.devices and not self._idle and not self._running and not self._reviving:
            self._give_up(ExecutorError("no device is left: all were lost; see what ended their workers"))
        self._start_runs()
        self._start_builds()

    def _start_builds(self) -> None:
        room = AHEAD * (self.executor.builders + len(self.devices)) - self._waiting
        while self._to_build and self._may_build and self._building < min(self.executor.builders, room):
            job = self._to_build.popleft()
            if job.future.done():
                continue
            if job.work.problem.digest in self._broken:
                job.future.set_exception(self._broken[job.work.problem.digest])
                continue
            self._building += 1
            self._start(self._build(job))

    @property
    def _may_build(self) -> bool:
        """True where a build would disturb no timing.

        Where the two alternate, builds begin when nothing waits to be timed and go on while their results fit: at each
        change cores are idle, and the compiler's files have left the memory when the next builds begin.
        """
        if not self.executor.alternates:
            return True
        return not self._running and (self._building > 0 or not self._waiting)

    def _start_runs(self) -> None:
        if self.executor.alternates and self._building:
            return
        while self._idle and (chosen := self._next()) is not None:
            job, device = chosen
            del self._idle[device.name]
            self._running += 1
            self._start(self._run(job, device))

    def _start(self, stage: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(stage)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _build(self, job: _Job) -> None:
        self.tally.begun["build"] += 1
        job.report("building")
        try:
            made = await self.executor.build(job.work)
            self.tally.ended["build"] += 1
            if isinstance(made, Product):
                job.product = made
                job.report("built")
                self._queue(job)
            else:
                self._finish(job, made, None)
        except Lost as error:
            self._lose(job, "build", error)
        except Exception as error:  # ours or the executor's: the caller gets it
            _fail(job, error)
        finally:
            self._building -= 1
            self._go_on()

    async def _run(self, job: _Job, device: Device) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self.tally.begun[job.stage] += 1
        job.report("judging")
        self._warmth.use(device.name, job.work.problem.digest)
        try:
            answer = await self.executor.run(job.stage, job.work, job.product, device)
            self.tally.ended[job.stage] += 1
            self._finish(job, answer, device)
            self._idle[device.name] = device
        except ProductGone as error:
            self._idle[device.name] = device
            self._lose(job, job.stage, error)
        except Lost as error:
            self._reviving.add(device.name)
            self._start(self._revive(device))
            self._lose(job, job.stage, error)
        except Exception as error:
            self._idle[device.name] = device
            _fail(job, error)
        finally:
            self._running -= 1
            self.tally.busy_s[device.name] = self.tally.busy_s.get(device.name, 0.0) + loop.time() - start
            self._go_on()

    async def _revive(self, device: Device) -> None:
        self._warmth.forget(device.name)
        try:
            with contextlib.suppress(Lost, ExecutorError):
                if await self.executor.revive(device):
                    self._idle[device.name] = device
        finally:
            self._reviving.discard(device.name)
            self._go_on()

    def _finish(self, job: _Job, answer: Answer, device: Device | None) -> None:
        if answer.verdict is not None:
            if not job.future.done():
                job.future.set_result(DeviceVerdict(answer.verdict, device))
            return
        error = answer.error or JobError(message="the worker gave no reason")
        if error.whole_problem and job.settles and self._remembers_broken:
            self._broken[job.work.problem.digest] = Unjudged(error)
        _fail(job, Unjudged(error))

    def _lose(self, job: _Job, stage: Stage, error: Lost) -> None:
        """Run the job again, before all others: from its build on where the product may be lost too."""
        self.tally.lost[stage] += 1
        job.report("lost")
        job.lost += 1
        if job.lost >= TRIES:
            why = f"{job.lost} workers were lost while it was judged (the last: {error})"
            _fail(job, Unjudged(JobError(message=why)))
        elif stage == "build" or isinstance(error, ProductGone):
            self._to_build.appendleft(job)
        else:
            self._queue(job, first=True)

    def _queue(self, job: _Job, first: bool = False) -> None:
        jobs = self._ready.setdefault(job.work.problem.digest, deque())
        (jobs.appendleft if first else jobs.append)(job)
        job.since = asyncio.get_running_loop().time()
        self._waiting += 1

    def _next(self) -> tuple[_Job, Device] | None:
        """Return the next job and its device: where devices are scarce one of them chooses, else the work does."""
        while self._ready:
            if len(self._idle) > len(self._ready):
                digest = next(iter(self._ready))
                name = self._warmth.device_for(digest, self._idle)
            else:
                name = next(iter(self._idle))
                digest = self._warmth.problem_for(name, self._ready, asyncio.get_running_loop().time())
            jobs = self._ready[digest]
            job = jobs.popleft()
            self._waiting -= 1
            if not jobs:
                del self._ready[digest]
            if not job.future.done():
                return job, self._idle[name]
        return None

    def _give_up(self, error: ExecutorError) -> None:
        jobs = [*self._to_build, *(job for jobs in self._ready.values() for job in jobs)]
        self._to_build.clear()
        self._ready.clear()
        self._waiting = 0
        for job in jobs:
            _fail(job, error)


def _fail(job: _Job, error: BaseException) -> None:
    if not job.future.done():
        job.future.set_exception(error)
