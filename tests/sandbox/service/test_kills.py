"""Five hundred jobs, some of them hostile, through three kills of the service: each ends once, and keeps its end.

`KERNELWRIGHT_SERVICE_JOBS` is another number of jobs, at least 40.
"""

import asyncio
import os
import random
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from kernelwright.sandbox.pool.client import ServiceClient
from tests.support.problems import RIGHT, WRONG
from tests.support.service import Service, job

pytestmark = [pytest.mark.slow, pytest.mark.long]
JOBS = int(os.environ.get("KERNELWRIGHT_SERVICE_JOBS", "500"))
KILLED_AFTER = (JOBS // 5, 2 * JOBS // 5, 3 * JOBS // 5)
SENDERS = 16
HEAD = "import os\nimport signal\n"
SENT = {
    "not python": ("class ModelNew(:\n", JOBS - 24, "failed"),
    "right": (RIGHT, 6, "passed"),
    "wrong": (WRONG, 6, "failed"),
    "leaves at once": (f"{HEAD}os._exit(0)\n{RIGHT}", 3, "failed"),
    "kills its parent": (f"{HEAD}os.kill(os.getppid(), signal.SIGKILL)\n{RIGHT}", 3, "failed"),
    "kills all it can": (f"{HEAD}os.kill(-1, signal.SIGKILL)\n{RIGHT}", 3, "failed"),
    "reads the jobs": (f"{HEAD}open('{{jobs}}').read(1)\n{RIGHT}", 3, "failed"),
}
"""By name: the source, how many of it, and the outcome."""


async def test_three_kills_lose_no_job(tmp_path):
    jobs = tmp_path / "state" / "jobs.db"
    names = [name for name, (_, count, _) in SENT.items() for _ in range(count)]
    random.Random(0).shuffle(names)
    sources = [SENT[name][0].replace("{jobs}", str(jobs)) for name in names]
    waiting = iter(
        [(name, job(source, number)) for number, (name, source) in enumerate(zip(names, sources, strict=True))]
    )
    ended, service = [], Service(tmp_path)
    client = service.start()
    sender = ServiceClient(client.at)

    async def send():
        for name, request in waiting:
            ended.append((name, await sender.judge(request)))

    tasks = [asyncio.create_task(send()) for _ in range(SENDERS)]
    try:
        for count in KILLED_AFTER:
            while len(ended) < count:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.02)
            service.kill()
            client = await asyncio.to_thread(service.start)
        await asyncio.gather(*tasks)
        again = {one["id"]: client.ask("GET", f"/v1/jobs/{one['id']}").body for _, one in ended}
        assert client.metrics()["kernelwright_jobs_open"] == 0
    finally:
        for task in tasks:
            task.cancel()
        service.end()
    expected = Counter({(name, outcome): count for name, (_, count, outcome) in SENT.items()})
    assert Counter((name, (one["report"] or one["error"]).get("outcome")) for name, one in ended) == expected
    assert len(again) == len(ended) == sum(expected.values()) == JOBS
    assert all(again[one["id"]] == {key: one[key] for key in again[one["id"]]} for _, one in ended)
    with closing(sqlite3.connect(jobs)) as database:
        rows = "SELECT count(*) FROM jobs WHERE state = 'done' AND report IS NOT NULL AND error IS NULL"
        assert database.execute(rows).fetchone() == (JOBS,)
