"""Which job is judged when, and that each ends once; on a device that judges when it is told to."""

import asyncio
import contextlib
import json

import pytest

from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.service import queue as job_queue
from kernelwright.sandbox.service.queue import AHEAD, DeviceGroup, Draining, JobQueue, QueueFull
from kernelwright.sandbox.service.requests import read_request
from kernelwright.sandbox.service.store import JobStore, KeyTaken
from tests.support.service import TurnedExecutor, job

ROOM = 1 + AHEAD


class HardToOpen(TurnedExecutor):
    """Loses its device at the first run, and can then be opened only where the next of `errors` is None."""

    def __init__(self, *errors):
        super().__init__()
        self.lost, self.revives = 1, False
        self.errors = [None, *errors]
        self.tries = 0
        self.may_open = asyncio.Event()
        self.may_open.set()

    async def open(self):
        self.tries += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        await self.may_open.wait()
        return await super().open()


class SlowToBuild(HardToOpen):
    """Begins a second build, which ends only where it is begun anew, before the device of the first is lost."""

    def __init__(self):
        super().__init__()
        self.builds = 0
        self.second = asyncio.Event()

    async def build(self, work):
        self.builds += 1
        if self.builds == 2:
            self.second.set()
            await asyncio.Event().wait()
        return await super().build(work)

    async def run(self, stage, work, product, device):
        await self.second.wait()
        return await super().run(stage, work, product, device)


@contextlib.asynccontextmanager
async def queueing(folder, executor, limit=100, keep=1000, kinds=("cpu",)):
    store, group = JobStore(folder / "jobs.db", keep), DeviceGroup(lambda: executor)
    await group.open()
    queue = JobQueue(store, dict.fromkeys(kinds, group), limit)
    await queue.start()
    try:
        yield queue
    finally:
        await queue.stop()
        await group.close()
        store.close()


def new(number=0, **more):
    return read_request(json.dumps(job(number=number, **more)), ["cpu"])


def numbers(executor):
    return [int(source.rpartition("# ")[2]) for source in executor.order]


async def settled(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def test_jobs_are_judged_in_the_order_in_which_they_came(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(number)) for number in range(6)]
        for _ in jobs:
            executor.may_go.release()
        ended = [await queue.job(one.id, 60) for one in jobs]
        assert [one.state for one in ended] == ["done"] * 6
        assert numbers(executor) == list(range(6))


async def test_priority_goes_before_what_waits_and_not_before_what_is_begun(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(number)) for number in range(6)]
        jobs += [await queue.accept(new(number, priority=5)) for number in (10, 11)]
        for _ in jobs:
            executor.may_go.release()
        for one in jobs:
            await queue.job(one.id, 60)
        begun = list(range(ROOM))
        assert numbers(executor) == [*begun, 10, 11, *range(ROOM, 6)]


async def test_a_full_queue_takes_nothing_but_what_it_knows(tmp_path):
    async with queueing(tmp_path, TurnedExecutor(), limit=2) as queue:
        known = await queue.accept(new(1, key="a"))
        await queue.accept(new(2))
        with pytest.raises(QueueFull):
            await queue.accept(new(3))
        assert (await queue.accept(new(1, key="a"))).id == known.id


async def test_many_who_come_at_once_do_not_fill_it_beyond_its_limit(tmp_path):
    async with queueing(tmp_path, TurnedExecutor(), limit=3) as queue:
        came = await asyncio.gather(*(queue.accept(new(n)) for n in range(9)), return_exceptions=True)
        assert sum(isinstance(one, QueueFull) for one in came) == 6


async def test_two_clients_with_one_key_at_once_get_one_job(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        one, other = await asyncio.gather(queue.accept(new(1, key="k")), queue.accept(new(1, key="k")))
        assert one.id == other.id and queue.open_jobs == 1
        with pytest.raises(KeyTaken):
            await queue.accept(new(2, key="k"))


async def test_a_job_that_waits_is_cancelled_and_never_judged(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(number)) for number in range(ROOM + 1)]
        assert (await queue.cancel(jobs[-1].id)).state == "cancelled"
        for _ in jobs:
            executor.may_go.release()
        for one in jobs:
            await queue.job(one.id, 60)
        assert ROOM not in numbers(executor)


async def test_a_job_that_is_judged_is_cancelled_and_its_verdict_is_not_kept(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        one, other = await queue.accept(new(1)), await queue.accept(new(2))
        await settled(lambda: executor.order)
        assert (await queue.cancel(one.id)).state == "cancelled"
        executor.may_go.release()
        executor.may_go.release()
        assert (await queue.job(other.id, 60)).state == "done"
        found = await queue.job(one.id)
        assert (found.state, found.report, found.error) == ("cancelled", None, None)
        assert (await queue.cancel(other.id)).state == "done"


async def test_what_had_not_ended_is_judged_after_the_next_start_and_what_had_is_there(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(number)) for number in range(4)]
        executor.may_go.release()
        assert (await queue.job(jobs[0].id, 60)).state == "done"
    again = TurnedExecutor()
    async with queueing(tmp_path, again) as queue:
        for _ in jobs:
            again.may_go.release()
        ended = [await queue.job(one.id, 60) for one in jobs]
    assert [one.state for one in ended] == ["done"] * 4
    assert sorted(numbers(again)) == [1, 2, 3]


async def test_a_drain_ends_what_is_judged_and_leaves_the_rest_to_the_next_start(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(number)) for number in range(5)]
        await settled(lambda: executor.order)
        draining = asyncio.create_task(queue.drain())
        await settled(lambda: queue.draining)
        with pytest.raises(Draining):
            await queue.accept(new(9))
        executor.may_go.release()
        await draining
        states = [(await queue.job(one.id)).state for one in jobs]
    assert states[0] == "done" and "done" not in states[1:]
    assert numbers(executor) == [0]
    async with queueing(tmp_path, TurnedExecutor()) as queue:
        assert queue.open_jobs == 4


async def test_a_lost_worker_costs_a_stage_and_no_verdict(tmp_path):
    executor = TurnedExecutor()
    executor.lost = 2
    async with queueing(tmp_path, executor) as queue:
        one = await queue.accept(new(1))
        executor.may_go.release()
        seen = [event async for event in queue.events(one.id, 60)]
        assert seen.count("lost") == 2 and seen[-1] == "done"
        assert (await queue.job(one.id)).report["outcome"] == "failed"


async def two_judged(queue, executor):
    """The states of two jobs whose judging is let go, at their end."""
    jobs = [await queue.accept(new(number)) for number in range(2)]
    executor.may_go.release()
    executor.may_go.release()
    return [(await queue.job(one.id, 60)).state for one in jobs]


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("ours"), ExecutorError("none")])
async def test_a_place_is_opened_again_whatever_went_wrong_and_the_log_tells_it(tmp_path, monkeypatch, caplog, error):
    monkeypatch.setattr(job_queue, "AGAIN_S", 0.01)
    executor = HardToOpen(error, error)
    async with queueing(tmp_path, executor) as queue:
        assert await two_judged(queue, executor) == ["done", "done"]
    assert executor.tries == 4
    told = [one.getMessage() for one in caplog.records if one.name == "kernelwright.sandbox.service"]
    assert sum("not opened again" in line and str(error) in line for line in told) == 2


async def test_between_two_tries_at_a_place_nothing_is_tried_and_its_jobs_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(job_queue, "AGAIN_S", 3600)
    executor = HardToOpen(*[OSError(24, "Too many open files")] * 9)
    async with queueing(tmp_path, executor) as queue:
        jobs = [await queue.accept(new(0))]
        await settled(lambda: executor.tries == 2)
        jobs += [await queue.accept(new(number)) for number in range(1, 9)]
        await queue.cancel(jobs.pop().id)
        for _ in range(100):
            await asyncio.sleep(0)
        assert {(await queue.job(one.id)).state for one in jobs} == {"queued"}
        assert (executor.tries, queue.running, queue.open_jobs) == (2, 0, len(jobs))


async def test_whose_job_lost_the_place_may_cancel_it_and_the_place_is_opened_for_the_others(tmp_path):
    executor = HardToOpen()
    async with queueing(tmp_path, executor) as queue:
        executor.may_open.clear()
        one = await queue.accept(new(1))
        await settled(lambda: executor.tries == 2)
        await queue.cancel(one.id)
        executor.may_open.set()
        other = await queue.accept(new(2))
        executor.may_go.release()
        assert (await queue.job(other.id, 60)).state == "done"
        assert (await queue.job(one.id)).state == "cancelled" and numbers(executor) == [1, 2]


async def test_what_was_being_built_when_its_place_was_opened_again_is_judged_too(tmp_path):
    executor = SlowToBuild()
    async with queueing(tmp_path, executor) as queue:
        assert await two_judged(queue, executor) == ["done", "done"]


async def test_what_ends_the_service_again_and_again_is_given_up(tmp_path):
    for _ in range(job_queue.MOST_BEGUN):
        executor = TurnedExecutor()
        async with queueing(tmp_path, executor) as queue:
            one = await queue.accept(new(1, key="k"))
            await settled(lambda: executor.order)  # noqa: B023
    async with queueing(tmp_path, TurnedExecutor()) as queue:
        found = await queue.job(one.id, 60)
        assert "ended 10 times" in found.error.message


async def test_a_job_for_devices_that_are_gone_waits_for_them_and_can_be_cancelled(tmp_path):
    async with queueing(tmp_path, TurnedExecutor()) as queue:
        jobs = [await queue.accept(new(number)) for number in range(2)]
    async with queueing(tmp_path, TurnedExecutor(), kinds=()) as queue:
        assert (await queue.job(jobs[0].id, 60)).state == "queued"
        assert [event async for event in queue.events(jobs[0].id, 60)] == ["queued"]
        assert (await queue.cancel(jobs[0].id)).state == "cancelled"
    async with queueing(tmp_path, TurnedExecutor()) as queue:
        assert queue.open_jobs == 1


async def test_the_oldest_that_ended_are_forgotten(tmp_path):
    executor = TurnedExecutor()
    async with queueing(tmp_path, executor, keep=10) as queue:
        jobs = []
        for number in range(50):
            jobs.append(await queue.accept(new(number)))
            executor.may_go.release()
            await queue.job(jobs[-1].id, 60)
        there = [await queue.job(one.id) is not None for one in jobs]
        assert there == [False] * 40 + [True] * 10
