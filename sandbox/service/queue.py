"""`JobQueue`: the order in which jobs are judged, and the events of each. Each job ends once."""

import asyncio
import heapq
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from pydantic import ValidationError

from kernelwright.sandbox.pool.dispatcher import DeviceVerdict, Dispatcher, Step, Tally
from kernelwright.sandbox.pool.executor import Device, Executor, ExecutorError, JobError, Stage, Unjudged, Work
from kernelwright.sandbox.service.store import Begun, DeviceKind, Ending, Job, JobStore, NewJob, OpenJob, StoreError
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.report import report

AHEAD = 2
"""Jobs of a device's dispatcher in addition to those that build: one is timed, the next one is ready."""


class DeviceGroup:
    """Devices of one kind, all of which may take a job. Open it, and close it."""

    def __init__(self, make_executor: Callable[[], Executor], kind: str | None = None) -> None:
        """`kind`: a part of the name of the devices to use, where there are several kinds."""
        self._make_executor, self._kind = make_executor, kind
        self._dispatcher: Dispatcher | None = None
        self.is_lost = False
        """Whether it has to be opened again before anything is judged here."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._dispatcher.devices if self._dispatcher else ()

    @property
    def tally(self) -> Tally:
        return self._dispatcher.tally if self._dispatcher else Tally()

    @property
    def capacity(self) -> int:
        """Jobs that it may have at a time: a job that waits in the queue can still be overtaken, or taken back."""
        if self._dispatcher is None or self.is_lost:
            return 0
        return self._dispatcher.executor.builders + AHEAD * len(self.devices)

    async def open(self) -> None:
        """Raises `ExecutorError` or `MachineError` without a device."""
        # What one client's candidate does to the memory of this machine must not end another's problem.
        dispatcher = Dispatcher(self._make_executor(), self._kind, remembers_broken=False)
        await dispatcher.__aenter__()
        self._dispatcher, self.is_lost = dispatcher, False

    async def judge(self, work: Work, stage: Stage, on_step: Callable[[Step], None]) -> DeviceVerdict:
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise ExecutorError("no device is left")
        try:
            return await dispatcher.judge(work, stage, on_step)
        except ExecutorError:
            self.is_lost |= dispatcher is self._dispatcher  # else it has been opened again meanwhile
            raise

    async def close(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await dispatcher.__aexit__()


LOG = logging.getLogger("kernelwright.sandbox.service")
AGAIN_S = 10.0
"""Seconds after which a group without devices, or a full store, is tried again."""
MOST_BEGUN = 10
"""Starts of a job's judging in which the service may be killed: the job may be the cause."""
IN_A_STAGE = frozenset({"building", "judging"})
LONGEST_RETRY_S = 60
Event = Step | str
P = ParamSpec("P")
R = TypeVar("R")


class QueueFull(Exception):
    """The queue is full; `retry_s` says when to ask again."""

    def __init__(self, retry_s: int) -> None:
        super().__init__(f"as many jobs wait as this service takes; ask again in {retry_s} s")
        self.retry_s = retry_s


class Draining(Exception):
    """The service is about to end and takes no more jobs."""


@dataclass(eq=False)
class _Live:
    opened: OpenJob
    events: list[Event] = field(default_factory=lambda: ["queued"])
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is a new event."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    def report(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()
        self.news = asyncio.Event()


@dataclass
class Counts:
    accepted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """By outcome: passed, failed, error, cancelled."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests, by reason."""
    judged_s: float = 0.0
    """Seconds from the begin of a job to its end, summed over all jobs."""


class JobQueue:
    """Takes jobs, has them judged in the order in which they are due, and ends each once. Start it, and stop it."""

    def __init__(self, store: JobStore, groups: Mapping[DeviceKind, DeviceGroup], limit: int) -> None:
        """`limit`: how many jobs may be open."""
        self.store, self.groups, self.limit = store, groups, limit
        self.counts = Counts()
        self.draining = False
        self.stopping = asyncio.Event()
        """Set when every waiting request has to end."""
        self._live: dict[str, _Live] = {}
        self._due: dict[DeviceKind, list[tuple[float, str]]] = {name: [] for name in groups}
        self._running: Counter[DeviceKind] = Counter()
        self._opening: dict[DeviceKind, asyncio.Task[None]] = {}
        """Tasks that open lost groups again. No job's own task does this: it would end where the job is cancelled."""
        self._adding = 0

    async def start(self) -> None:
        """Continue the jobs that an earlier service left. Those for devices that this one lacks stay where they are."""
        for opened in await self.store.do(self.store.unfinished):
            if opened.device in self.groups:
                self._line_up(opened)
        self._go_on()

    @property
    def open_jobs(self) -> int:
        return len(self._live)

    @property
    def running(self) -> int:
        return self._running.total()

    async def accept(self, new: NewJob) -> Job:
        """Keep a job and have it judged. Raises `KeyTaken`, `QueueFull`, `Draining` and `StoreError`."""
        if new.key is not None and (known := await self.store.do(self.store.known, new)) is not None:
            return known
        if self.draining:
            raise Draining
        if len(self._live) + self._adding >= self.limit:
            each_s = self.counts.judged_s / max(1, self.counts.ended.total())
            raise QueueFull(min(LONGEST_RETRY_S, max(1, math.ceil(each_s))))
        self._adding += 1
        try:
            job, opened = await self.store.do(self.store.add, new)
        finally:
            self._adding -= 1
        if opened is not None:
            self.counts.accepted += 1
            self._line_up(opened)
            self._go_on()
        return job

    def _line_up(self, opened: OpenJob) -> None:
        self._live[opened.id] = _Live(opened)
        heapq.heappush(self._due[opened.device], (opened.due, opened.id))

    def _go_on(self) -> None:
        for name, group in self.groups.items():
            if group.is_lost and name not in self._opening and not self.draining:
                self._opening[name] = asyncio.create_task(self._open_again(name, group))
            due = self._due[name]
            while due and self._running[name] < group.capacity and not self.draining:
                live = self._live.get(heapq.heappop(due)[1])
                if live is not None and live.task is None:
                    self._running[name] += 1
                    live.task = asyncio.create_task(self._judge(live, group))

    async def _judge(self, live: _Live, group: DeviceGroup) -> None:
        """Judge a job up to its end. Where this is cancelled, the caller has ended the job, or will."""
        start = asyncio.get_running_loop().time()
        try:
            begun = await self._stored(self.store.begin, live.opened.id)
            if begun is not None:
                ending = await self._ending(live, group, begun)
                if await self._stored(self.store.finish, live.opened.id, ending):
                    self._ended(live, ending.outcome)
        except ExecutorError as error:
            LOG.warning("job %s is put back: %s", live.opened.id, error)
            await self._stored(self.store.put_back, live.opened.id)
            live.report("queued")
            heapq.heappush(self._due[live.opened.device], (live.opened.due, live.opened.id))
        finally:
            self.counts.judged_s += asyncio.get_running_loop().time() - start
            self._running[live.opened.device] -= 1
            live.task = None
            self._go_on()

    async def _ending(self, live: _Live, group: DeviceGroup, begun: Begun) -> Ending:
        """Return the result of the job. Raises `ExecutorError` without a device to judge it on."""
        if begun.times > MOST_BEGUN:
            return Ending(JobError(message=f"the service ended {MOST_BEGUN} times while this was judged"))
        try:
            work = Work.model_validate_json(begun.work)
            judged = await group.judge(work, begun.stage, live.report)
            found = await asyncio.to_thread(report, judged.verdict)
            device = judged.device.model_dump_json() if judged.device else None
            # By `json`: what a candidate has printed need not be text that pydantic would write.
            return Ending(None, found, json.dumps(judged.verdict.model_dump(mode="json")), device)
        except ExecutorError:
            raise
        except Unjudged as error:
            return Ending(error.error)
        except ValidationError:
            return Ending(JobError(message="it was accepted by another version of the service; send it again"))
        except Exception as error:  # ours: one job must not stay open for ever
            LOG.exception("job %s", live.opened.id)
            return Ending(JobError(message=f"the service itself failed ({type(error).__name__}); please report it"))

    async def _stored(self, what: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Return the result of the store; where the disk is full, once it is not."""
        while True:
            try:
                return await self.store.do(what, *given, **named)
            except StoreError as error:
                LOG.warning("%s", error)
                await asyncio.sleep(AGAIN_S)

    def _ended(self, live: _Live, outcome: str) -> None:
        self.counts.ended[outcome] += 1
        self._live.pop(live.opened.id, None)
        live.report("cancelled" if outcome == "cancelled" else "done")
        live.ended.set()

    async def _open_again(self, name: DeviceKind, group: DeviceGroup) -> None:
        """Try until the group has devices; whatever goes wrong, its jobs must not wait for ever."""
        try:
            while group.is_lost and not self.draining:
                try:
                    await group.close()
                    await group.open()
                except Exception as error:
                    foreseen = isinstance(error, ExecutorError | SandboxError)
                    LOG.warning("%s is not opened again: %s", name, error, exc_info=not foreseen)
                    await asyncio.sleep(AGAIN_S)
        finally:
            del self._opening[name]
        self._go_on()

    async def cancel(self, id: str) -> Job | None:
        """End a job without a verdict, unless it has ended. A begun stage is completed, and its result dropped."""
        live = self._live.get(id)
        if await self.store.do(self.store.cancel, id) and live is not None:
            self._ended(live, "cancelled")
            if live.task is not None:
                live.task.cancel()
        return await self.store.do(self.store.get, id)

    async def job(self, id: str, wait_s: float = 0.0) -> Job | None:
        """Return the job: at its end if that comes within `wait_s`, else as it is then."""
        live = self._live.get(id)
        if live is not None and wait_s > 0:
            waits = [asyncio.ensure_future(live.ended.wait()), asyncio.ensure_future(self.stopping.wait())]
            try:
                await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
        return await self.store.do(self.store.get, id)

    async def events(self, id: str, silence_s: float) -> AsyncIterator[Event | None]:
        """Yield the job's steps, past and future, up to its end; None after each silence."""
        live = self._live.get(id)
        if live is None:
            job = await self.store.do(self.store.get, id)
            if job is not None:
                yield job.state
            return
        sent = 0
        while not self.stopping.is_set():
            news = live.news
            while sent < len(live.events):
                yield live.events[sent]
                sent += 1
            if live.ended.is_set():
                return
            try:
                await asyncio.wait_for(news.wait(), silence_s)
            except TimeoutError:
                yield None

    async def drain(self) -> None:
        """Take no more jobs, let those end that are in a stage now, and leave the rest to the next start."""
        self.draining = True
        tasks = []
        for live in list(self._live.values()):
            if live.task is None:
                continue
            tasks.append(live.task)
            if live.events[-1] not in IN_A_STAGE:
                live.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Stop everything; jobs that have not ended are judged after the next start."""
        self.draining = True
        self.stopping.set()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        tasks += self._opening.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
