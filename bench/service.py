"""`kernelwright serve` under load: eight clients, 500 jobs of which 50 are hostile, three kills at random.

Beside them a client with a wrong token, one with a body that is too large, one that sends half of its body and one that
sends a byte now and then. `KERNELWRIGHT_SERVICE_JOBS` makes it smaller: a tenth of them is hostile.
"""

import asyncio
import os
import random
import socket
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.sandbox.pool.client import TOKEN, RefusedJob, ServiceClient
from kernelwright.sandbox.service.app import LARGEST_BODY_BYTES
from tests.support.problems import RIGHT, WRONG
from tests.support.service import Client, Service, job

JOBS = int(os.environ.get("KERNELWRIGHT_SERVICE_JOBS", "500"))
CLIENTS, IN_FLIGHT, KILLS = 8, 4, 3
MEMORY = "3GiB"
"""For each child: what takes all memory is not to take it from others of this machine."""
GROWTH_BYTES = 32 * 2**20
"""What the process that listens may hold more at the end than when it had judged its first jobs."""
WARM_JOBS = 10
SECRET = "a-token-for-the-bench"
HEAD = "import os, signal, socket, sys, threading, time\nimport torch\n"
HOSTILE = {
    "loops for ever": "while True: pass",
    "takes all memory": "held = [torch.ones(2**30) for _ in range(10_000)]",
    "forks for ever": "while True:\n    os.fork()",
    "kills all it can": "os.kill(-1, signal.SIGKILL)",
    "kills its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "leaves at once": "os._exit(0)",
    "fills the disk": "file = open('full', 'wb')\nwhile True: file.write(bytes(2**24))",
    "talks for ever": "while True: print('x' * 2**20)",
    "reads the jobs": "open(os.environ.get('HOME', '/') + '/.local/state/kernelwright/service/jobs.db').read(1)",
    "takes the parser's time": "text = f'" + "{a}" * 80_000 + "'",
    "can not be parsed": "(" * 150 + "-" * 100_000 + "1" + ")" * 150,
}


class Load(NamedTuple):
    """What came of it."""

    seconds: float
    jobs: int
    outcomes: Counter[str]
    """By what was sent and what came of it."""
    wrong: list[str]
    """Jobs that did not end as they should."""
    rows: int
    """Jobs in the store that ended, each of them once; those that were refused are not there."""
    memory_bytes: tuple[int, int]
    """Of the process that listens, after its first jobs since it was last started, and at the end."""
    beside: dict[str, str]
    """What clients that misbehave were answered."""

    @property
    def taken(self) -> int:
        """Jobs that were not refused."""
        return self.jobs - sum(count for what, count in self.outcomes.items() if what.endswith(": refused"))

    @property
    def holds(self) -> bool:
        """Whether every job had its one end, and nothing grew."""
        grown = self.memory_bytes[1] - self.memory_bytes[0]
        return not self.wrong and self.rows == self.taken and grown < GROWTH_BYTES and self.beside == DESERVED

    def __str__(self) -> str:
        rows = [f"  {what:<28} {count:4}" for what, count in sorted(self.outcomes.items())]
        first, last = (size / 2**20 for size in self.memory_bytes)
        rows.append(f"  {self.jobs} jobs in {self.seconds:.0f} s, {self.rows} in the store, {KILLS} kills")
        rows.append(f"  memory of the service {first:.0f} MiB, at the end {last:.0f} MiB")
        rows += [f"  {what}: {answer}" for what, answer in self.beside.items()]
        return "\n".join([*rows, *(f"  WRONG: {one}" for one in self.wrong)])


DESERVED = {"a wrong token": "401", "a large body": "413", "half a body": "408", "a byte a second": "408"}


def run() -> Load:
    """On this machine's processor."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as folder:
        os.environ[TOKEN] = SECRET
        try:
            return asyncio.run(_load(Path(folder)))
        finally:
            os.environ.pop(TOKEN)


async def _load(folder: Path) -> Load:
    rng, start = random.Random(), time.monotonic()
    service = Service(folder, "--port", str(_free_port()), "--memory", MEMORY)
    client = service.start()
    waiting = iter(_jobs(rng))
    ended: list[dict[str, Any]] = []
    tasks = [asyncio.create_task(_send(client.at, waiting, ended)) for _ in range(CLIENTS * IN_FLIGHT)]
    beside = asyncio.create_task(asyncio.to_thread(_misbehave, client))
    for at in sorted(rng.sample(range(1, max(KILLS + 1, JOBS // 2)), KILLS)):
        await _until(lambda at=at: len(ended) >= at, service)
        await asyncio.sleep(rng.uniform(0, 2))
        service.kill()
        print(f"  killed when {len(ended)} had ended, after {time.monotonic() - start:.0f} s", flush=True)
        client = await asyncio.to_thread(service.start)
    before = len(ended)
    await _until(lambda: len(ended) >= min(JOBS, before + WARM_JOBS), service)
    first = int(client.metrics()["process_resident_memory_bytes"])
    await _until(lambda: all(task.done() for task in tasks), service)
    await asyncio.gather(*tasks)
    last = int(client.metrics()["process_resident_memory_bytes"])
    told = await beside
    wrong = [*_wrong(ended), *_changed(client, ended)]
    service.end()
    outcomes = Counter(f"{one['sent']}: {_outcome(one)}" for one in ended)
    seconds = time.monotonic() - start
    return Load(seconds, len(ended), outcomes, wrong, _rows(folder / "state" / "jobs.db"), (first, last), told)


async def _until(reached: Callable[[], bool], service: Service) -> None:
    """Wait for it; a service that ends by itself has failed."""
    while not reached():
        if service.process.poll() is not None:
            said = (service.folder / f"err-{service.started}").read_text() + service.process.stdout.read()
            raise RuntimeError(f"the service ended by itself, with {service.process.returncode}: {said}")
        await asyncio.sleep(0.02)


def _jobs(rng: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """What is sent, in words, and as a request."""
    hostile, count = list(HOSTILE), JOBS // 10
    sent = [(hostile[n % len(hostile)], HEAD + HOSTILE[hostile[n % len(hostile)]] + RIGHT) for n in range(count)]
    sent += [("right", RIGHT) if n % 3 else ("wrong", WRONG) for n in range(JOBS - count)]
    rng.shuffle(sent)
    return [(what, job(source, number, key=f"bench-{number}")) for number, (what, source) in enumerate(sent)]


async def _send(at: str, waiting: Iterator[tuple[str, dict[str, Any]]], ended: list[dict[str, Any]]) -> None:
    """One of the clients: a job after the other, up to its end."""
    client = ServiceClient(at)
    for what, request in waiting:
        try:
            found = await client.judge(request)
        except RefusedJob:
            found = {"id": None, "report": {"outcome": "refused"}, "error": None}
        ended.append({"sent": what, "id": found["id"], "report": found["report"], "error": found["error"]})


def _outcome(one: dict[str, Any]) -> str:
    return "no verdict" if one["report"] is None else str(one["report"]["outcome"])


def _wrong(ended: list[dict[str, Any]]) -> list[str]:
    """Of jobs that were not given what they deserve."""
    found = []
    for one in ended:
        deserved = {"right": ["passed"], "wrong": ["failed"]}.get(one["sent"], ["failed", "refused"])
        if _outcome(one) not in deserved:
            found.append(f"{one['sent']} {one['id']}: {_outcome(one)} ({(one['error'] or one['report'])})"[:300])
    return found


def _changed(client: Client, ended: list[dict[str, Any]]) -> list[str]:
    """Of jobs whose end is another one when it is fetched again."""
    taken = [one for one in ended if one["id"]]
    again = {one["id"]: client.ask("GET", f"/v1/jobs/{one['id']}").body for one in taken}
    same = [all(again[one["id"]][key] == one[key] for key in ("report", "error")) for one in taken]
    return [f"{one['id']} has another end now" for one, alike in zip(taken, same, strict=True) if not alike]


def _rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as jobs:
        ended = "SELECT count(*) FROM jobs WHERE state = 'done' AND (report IS NULL) != (error IS NULL)"
        return int(jobs.execute(ended).fetchone()[0])


def _misbehave(client: Client) -> dict[str, str]:
    """What clients get that do not behave; while the service is killed they come again."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    head += f"Authorization: Bearer {SECRET}\r\n\r\n".encode()
    return {
        "a wrong token": _told(lambda: Client(client.at, "wrong").ask("GET", "/v1/service").status),
        "a large body": _told(lambda: client.ask("POST", "/v1/jobs", "x" * (LARGEST_BODY_BYTES + 1)).status),
        "half a body": _told(lambda: _status(client.raw(head + b"{"))),
        "a byte a second": _told(lambda: _status(_trickle(client, head))),
    }


def _told(ask: Any) -> str:
    while True:
        with suppress(OSError, ValueError):
            return str(ask())
        time.sleep(0.5)


def _status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else _broken()


def _broken() -> int:
    raise ValueError("the service was killed meanwhile")


def _trickle(client: Client, head: bytes) -> bytes:
    connection = client.connected(1.0)
    connection.connect()
    with connection.sock as opened:
        opened.sendall(head)
        while True:
            opened.sendall(b" ")
            with suppress(TimeoutError):
                return bytes(opened.recv(2**16))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
