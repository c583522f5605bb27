"""A client of the service, the service as a process or in a thread, and an executor that judges on request."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from kernelwright.sandbox.pool.executor import Answer, Lost, Product
from kernelwright.sandbox.service.app import application
from kernelwright.sandbox.service.queue import DeviceGroup, JobQueue
from kernelwright.sandbox.service.requests import TextReaders
from kernelwright.sandbox.service.server import LARGEST_HEAD_BYTES, DeadlineProtocol, Guard
from kernelwright.sandbox.service.store import JobStore
from kernelwright.sandbox.verdict.verdicts import Failed
from tests.support.executors import declared
from tests.support.problems import PROBLEM, RIGHT
from tests.support.runs import evidence

ROOT = Path(__file__).parents[2]
FEW = {"min_pairs": 4, "max_pairs": 4, "worker_pairs": 1, "warm_up": 1, "time_budget_s": 0.1}
LONG_S = 300


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@dataclass
class Said:
    """What came back."""

    status: int
    headers: dict
    text: str

    @property
    def body(self):
        return json.loads(self.text)


@dataclass
class Client:
    """Asks the service at an address."""

    at: str
    token: str | None = None

    def connected(self, timeout=LONG_S):
        if self.at.startswith("unix:"):
            return UnixConnection(self.at.removeprefix("unix:"), timeout)
        return http.client.HTTPConnection(self.at.removeprefix("http://"), timeout=timeout)

    def ask(self, method, path, body=None, **headers):
        if isinstance(body, dict):
            body = json.dumps(body)
        own = {"Content-Type": "application/json"} if body is not None else {}
        own |= {"Authorization": f"Bearer {self.token}"} if self.token else {}
        own |= {name.replace("_", "-"): said for name, said in headers.items()}
        with contextlib.closing(self.connected()) as connection:
            connection.request(method, path, body, own)
            answer = connection.getresponse()
            said = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, said, answer.read().decode())

    def raw(self, data, wait_s=LONG_S, whole=True):
        """What is answered to these bytes, up to the end of the connection, or the first part of it."""
        connection = self.connected(wait_s)
        connection.connect()
        with connection.sock as opened:
            opened.sendall(data)
            found = b""
            while chunk := opened.recv(2**16):
                found += chunk
                if not whole:
                    break
        return found

    def metrics(self):
        lines = [line.rpartition(" ") for line in self.ask("GET", "/metrics").text.splitlines() if line[0] != "#"]
        return {name: float(value) for name, _, value in lines}


def job(source=RIGHT, number=0, **more):
    """A request; each number is another candidate."""
    return {"text": PROBLEM, "name": "cumsum", "source": f"{source}\n# {number}\n", "settings": FEW} | more


class Service:
    """A real service in a process of its own, with its jobs in a folder; it can be killed and started again."""

    def __init__(self, folder, *words, **environment):
        self.folder, self.words = folder, [str(word) for word in words]
        self.environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        self.environment.pop("KERNELWRIGHT_SERVER", None)
        self.process = None
        self.started = 0

    def start(self):
        where = [] if "--port" in self.words else ["--socket", str(self.folder / "socket")]
        self.started += 1
        serve = [sys.executable, "-P", "-m", "kernelwright", "serve", "--state", str(self.folder / "state")]
        with (self.folder / f"err-{self.started}").open("w") as errors:
            streams = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
            words = [*serve, *where, *self.words]
            self.process = subprocess.Popen(words, cwd=self.folder, env=self.environment, **streams)
        line = self.process.stdout.readline()
        assert line.startswith("kernelwright serve: "), (self.folder / f"err-{self.started}").read_text()
        at = line.removeprefix("kernelwright serve: ").partition(",")[0]
        return Client(at, self.environment.get("KERNELWRIGHT_TOKEN"))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        """By SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONG_S)
        self.process.stdout.close()
        return status


class TurnedExecutor:
    """See `Executor`: a candidate is judged when the test lets it, and is always wrong."""

    builders = 1
    alternates = False

    def __init__(self):
        self.order = []
        """Sources in the order in which they were taken up."""
        self.may_go = asyncio.Semaphore(0)
        self.lost = 0
        """So many of the next runs lose their worker."""
        self.revives = True
        self.closed = 0

    async def open(self):
        return tuple(declared(["turned"], [0]))

    async def build(self, work):
        return Product("")

    async def run(self, stage, work, product, device):
        self.order.append(work.candidate.source)
        if self.lost:
            self.lost -= 1
            raise Lost("by the test")
        await self.may_go.acquire()
        return Answer(verdict=Failed(stage="check", reason="wrong", log="", evidence=evidence()))

    async def revive(self, device):
        return self.revives

    def release(self, problem):
        pass

    async def close(self):
        self.closed += 1


def until(found, seconds=LONG_S):
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)
    return value


class Listening:
    """Serves from `start` to `stop`."""

    def __init__(self, folder, token=None, hosts=None, limit=100, receive_s=20.0, send_s=30.0, most=512):
        self.folder, self.token, self.hosts, self.limit = folder, token, hosts, limit
        times = {
            "receive_s": receive_s,
            "send_s": send_s,
            "most": most,
            "late": Counter(),
            "receiving": {},
            "answering": set(),
        }
        self.protocol = type("Protocol", (DeadlineProtocol,), times)
        self.up = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self):
        self.loop, self.executor = asyncio.get_running_loop(), TurnedExecutor()
        store, group = JobStore(self.folder / "jobs.db", 100), DeviceGroup(lambda: self.executor)
        self.texts = TextReaders()
        await group.open()
        self.queue = JobQueue(store, {"cpu": group}, self.limit)
        served = application(self.queue, self.texts, self.protocol.late)
        self.guard = Guard(served, self.queue.counts.refused, self.protocol.answering, self.token, self.hosts)
        limits = {"h11_max_incomplete_event_size": LARGEST_HEAD_BYTES, "timeout_graceful_shutdown": 1}
        quiet = {"ws": "none", "lifespan": "off", "log_level": "critical"}
        self.server = uvicorn.Server(uvicorn.Config(self.guard, http=self.protocol, **quiet, **limits))
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.port = listening.getsockname()[1]
            self.up.set()
            await self.server.serve(sockets=[listening])
        await self.queue.stop()
        await group.close()
        await self.texts.close()
        store.close()

    def go(self, times=1):
        """Let so many candidates be judged."""
        for _ in range(times):
            self.loop.call_soon_threadsafe(self.executor.may_go.release)

    @property
    def late(self):
        return self.protocol.late

    def client(self, token=None):
        return Client(f"http://127.0.0.1:{self.port}", token)


@contextlib.contextmanager
def listening(folder, **options):
    service = Listening(folder, **options)
    service.thread.start()
    assert service.up.wait(60)
    try:
        yield service
    finally:
        service.loop.call_soon_threadsafe(setattr, service.server, "should_exit", True)
        service.thread.join(60)
