"""A service in a thread of the test: the real application and connection, over a device that judges when it is told."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter

import uvicorn

from kernelwright.sandbox.service.application import application
from kernelwright.sandbox.service.http_limits import LARGEST_HEAD_BYTES, Access, DeadlineProtocol
from kernelwright.sandbox.service.job_queue import JobQueue
from kernelwright.sandbox.service.job_store import JobStore
from kernelwright.sandbox.service.places import Place
from kernelwright.sandbox.service.text_process import TextProcess
from tests.sandbox.service.parts import Client, TurnedExecutor


class Listening:
    """Serves from `start` to `stop`."""

    def __init__(self, folder, token=None, hosts=None, limit=100, receive_s=20.0, send_s=30.0):
        self.folder, self.token, self.hosts, self.limit = folder, token, hosts, limit
        times = {"receive_s": receive_s, "send_s": send_s, "late": Counter()}
        self.protocol = type("Protocol", (DeadlineProtocol,), times)
        self.up = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self):
        self.loop, self.executor = asyncio.get_running_loop(), TurnedExecutor()
        store, place = JobStore(self.folder / "jobs.db", 100), Place(lambda: self.executor)
        self.texts, reports = TextProcess(), TextProcess()
        await place.open()
        self.queue = JobQueue(store, {"cpu": place}, reports, self.limit)
        config = uvicorn.Config(
            application(self.queue, self.texts, Access(self.token, self.hosts), self.protocol.late),
            http=self.protocol,
            ws="none",
            lifespan="off",
            log_level="critical",
            h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.port = listening.getsockname()[1]
            self.up.set()
            await self.server.serve(sockets=[listening])
        await self.queue.stop()
        await place.close()
        await self.texts.close()
        await reports.close()
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
    """One, and a client of it."""
    service = Listening(folder, **options)
    service.thread.start()
    assert service.up.wait(60)
    try:
        yield service
    finally:
        service.loop.call_soon_threadsafe(setattr, service.server, "should_exit", True)
        service.thread.join(60)
