"""The process of the service: where it listens, what it keeps, and how it ends."""

import asyncio
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from kernelwright.problems.problem import Record
from kernelwright.sandbox.jail.zygote import protect_this_process
from kernelwright.sandbox.locks import open_own, try_lock
from kernelwright.sandbox.pool.executor_choice import ExecutorChoice, executor_for
from kernelwright.sandbox.pool.remote import TOKEN, default_socket
from kernelwright.sandbox.service.application import application
from kernelwright.sandbox.service.http_limits import (
    LARGEST_HEAD_BYTES,
    LOOPBACK,
    MOST_CONNECTIONS,
    Access,
    DeadlineProtocol,
)
from kernelwright.sandbox.service.job_queue import JobQueue, Place
from kernelwright.sandbox.service.job_store import JOBS, JobStore, PlaceName
from kernelwright.sandbox.service.text_process import TextProcess
from kernelwright.sandbox.verdict.settings import Settings

LONGEST_SOCKET = 100
"""Bytes of a Unix socket's path; Linux has room for 107."""
SHORTEST_TOKEN = 16
CLOSING_S = 5


class ServiceError(Exception):
    """The service can not be started so; one sentence with the remedy."""


class Listening(Record):
    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """With a port it listens there, else on the Unix socket."""
    token: str | None = None


class ServiceOptions(Record):
    listening: Listening
    state: Path
    """Folder of the jobs."""
    queue: int
    """Jobs that may be open."""
    keep: int
    """Jobs that have ended and can still be fetched."""
    settings: dict[PlaceName, Settings]
    """The usual settings at each place that is judged on."""
    choice: ExecutorChoice = ExecutorChoice()


def serve(options: ServiceOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ServiceError`, `StoreError`, `ExecutorError` and `MachineError`."""
    if not is_loopback(options.listening.host) and any(one.jail == "off" for one in options.settings.values()):
        raise ServiceError(
            f"--host {options.listening.host} is open to others, who could do all that you can without a jail; "
            "leave out --jail off"
        )
    protect_this_process()
    os.environ.pop(TOKEN, None)  # processes that this one starts have no use for it
    with ExitStack() as stack:
        usual = os.umask(0o077)  # for what is made here alone: workers share files with the users of their jails
        stack.enter_context(_alone(options.state))
        listening = stack.enter_context(_listening(options.listening))
        store = JobStore(options.state / JOBS, options.keep)
        os.umask(usual)
        stack.callback(store.close)
        asyncio.run(_serve(options, store, listening))


async def _serve(options: ServiceOptions, store: JobStore, listening: socket.socket) -> None:
    async with AsyncExitStack() as stack:
        texts, reports = TextProcess(), TextProcess()
        stack.push_async_callback(texts.close)
        stack.push_async_callback(reports.close)
        places = _places(options)
        for place in places.values():
            await place.open()
            stack.push_async_callback(place.close)
        queue = JobQueue(store, places, reports, options.queue)
        await queue.start()
        stack.push_async_callback(queue.stop)
        words = ", ".join(f"{name}: {len(one.devices)} x {one.devices[0].kind}" for name, one in places.items())
        print(f"kernelwright serve: {_address(listening)}, on {words}; SIGTERM ends it", flush=True)
        await _Server(_config(options.listening, queue, texts), queue).serve(sockets=[listening])


def _places(options: ServiceOptions) -> dict[PlaceName, Place]:
    """Where there are GPUs, what is chosen is about them; the processor beside them starts when it is asked."""
    main, choice = "cuda" if "cuda" in options.settings else "cpu", options.choice
    beside = ExecutorChoice(builders=choice.builders)
    return {
        name: Place(partial(executor_for, choice, settings, at_once=True), choice.kind)
        if name == main
        else Place(partial(executor_for, beside, settings))
        for name, settings in options.settings.items()
    }


def _config(listening: Listening, queue: JobQueue, texts: TextProcess) -> uvicorn.Config:
    hosts = LOOPBACK | {listening.host} if listening.port is not None and listening.token is None else None
    return uvicorn.Config(
        application(queue, texts, Access(listening.token, hosts), DeadlineProtocol.late),
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
        timeout_graceful_shutdown=CLOSING_S,
    )


class _Server(uvicorn.Server):
    """Ends after what is being judged has ended; at the second signal at once."""

    def __init__(self, config: uvicorn.Config, queue: JobQueue) -> None:
        super().__init__(config)
        self._queue, self._loop = queue, asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._signalled)

    def _signalled(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self._leave()

    async def _drain(self) -> None:
        print("kernelwright serve: ends when what is being judged has ended; once more ends it now", flush=True)
        await self._queue.drain()
        self._leave()

    def _leave(self) -> None:
        self._queue.stopping.set()
        self.should_exit = True


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(f"{state} can not be made ({error.strerror}); choose another --state folder") from None
    lock = open_own(state / "lock")
    try:
        if not try_lock(lock, fcntl.LOCK_EX):
            raise ServiceError(f"another service has its jobs in {state}; end it, or choose another --state folder")
        yield
    finally:
        os.close(lock)


@contextmanager
def _listening(where: Listening) -> Iterator[socket.socket]:
    if where.port is None:
        path = where.socket or default_socket()
        with _unix(path) as found:
            found.listen()  # who asks from here on is answered once the service is up
            yield found
        return
    if where.token is None and not is_loopback(where.host):
        raise ServiceError(f"--host {where.host} is open to others; give a token by --token-file or {TOKEN}")
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((where.host, where.port))
        except OSError as error:
            raise ServiceError(
                f"{where.host}:{where.port} can not be used ({error.strerror}); choose another"
            ) from None
        found.listen()
        yield found


@contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise ServiceError(f"the path of the socket {path} is too long for one; choose a shorter one with --socket")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _answers(path):
        raise ServiceError(f"another service listens at {path}; end it, or choose another --socket")
    if path.is_socket():  # left by one that was killed
        path.unlink()
    with socket.socket(socket.AF_UNIX) as found:
        try:
            found.bind(str(path))  # under the umask: nobody else can connect
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            raise ServiceError(
                f"the socket {path} can not be made ({error.strerror}); choose another --socket"
            ) from None
        try:
            yield found
        finally:
            path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except OSError:
            return False
        return True


def is_loopback(host: str) -> bool:
    """Whether nobody on another machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(listening: socket.socket) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    return f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"
