"""The process of the service: its socket, the access to it, the limits of a connection, and the shutdown."""

import asyncio
import fcntl
import hashlib
import hmac
import ipaddress
import os
import socket
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import ClassVar, Literal

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kernelwright.problems.problem import Record
from kernelwright.sandbox.jail.zygote import protect_this_process
from kernelwright.sandbox.locks import open_own, try_lock
from kernelwright.sandbox.pool.client import TOKEN, default_socket
from kernelwright.sandbox.pool.judge_pool import Where, executor_for
from kernelwright.sandbox.service.app import application
from kernelwright.sandbox.service.queue import DeviceGroup, JobQueue
from kernelwright.sandbox.service.requests import TextReaders
from kernelwright.sandbox.service.store import JOBS, DeviceKind, JobStore
from kernelwright.sandbox.verdict.settings import JudgeSettings

LARGEST_HEAD_BYTES = 16 * 2**10
LARGEST_REST_BYTES = 64 * 2**20
"""Limit on the rest of a refused body; a larger one ends with its connection."""
RECEIVE_S = 20.0
"""From the first byte that is waited for until the request is complete."""
SEND_S = 30.0
"""Time for a client to read an answer."""
MOST_CONNECTIONS = 512
"""Beyond it the connection that has waited longest for its client is ended."""
MOST_REQUESTS = 448
"""Requests that are answered at the same time; more get 503."""
LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
OPEN_PATHS = frozenset({"/healthz"})
"""Paths that need no token and are always answered: they say only that the service is there."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_SOCKET = 100
"""Bytes of a Unix socket's path; the limit of Linux is 107."""
SHORTEST_TOKEN = 16
CLOSING_S = 5


Fault = Literal["slow", "unread"]


class DeadlineProtocol(H11Protocol):
    """Connection that ends where its client is slow: in sending a complete request, or in reading an answer.

    uvicorn limits neither. Where there are too many connections, the one that has been slow for longest ends.
    """

    receive_s, send_s, most = RECEIVE_S, SEND_S, MOST_CONNECTIONS
    late: ClassVar[Counter[str]] = Counter()
    """Connections that were ended so: `slow` ones, and those whose answers were `unread`."""
    receiving: ClassVar[dict["DeadlineProtocol", None]] = {}
    """Connections that wait for their client to send, oldest first."""
    answering: ClassVar[set["DeadlineProtocol"]] = set()
    """Connections whose request is complete."""
    _fault: Fault | None = None
    """What the client is once the timer ends; None where nothing is expected of it."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.most:
            next(iter(self.receiving))._end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Start the timer of what the client has to do now, unless it runs."""
        is_open, is_sending = self in self.connections, self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        is_blocked = self.flow.write_paused or self.transport.is_closing()
        (self.answering.add if is_open and not is_sending else self.answering.discard)(self)
        fault: Fault | None = None
        if is_open and (is_blocked or is_sending):
            fault = "unread" if is_blocked else "slow"
        if fault == self._fault:
            return
        self._fault = fault
        self.receiving.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if fault is not None:
            self._timer = self.loop.call_later(self.receive_s if fault == "slow" else self.send_s, self._end)
        if fault == "slow":
            self.receiving[self] = None

    def _end(self) -> None:
        if self._fault == "unread" or self.transport.is_closing():
            self.late["unread"] += 1
            self.transport.abort()
            return
        self.late["slow"] += 1
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(LATE)
        self.transport.close()
        self._watch()


@dataclass
class Guard:
    """Middleware that refuses requests without the token, or beyond those that are answered at the same time.

    Without a token, it refuses requests for another host name, which a web page elsewhere could send. It
    receives the rest of the body of a refused request: a client that still sends would lose the answer.
    """

    app: ASGIApp
    refused: Counter[str]
    answering: Collection[object]
    token: str | None
    hosts: Collection[str] | None
    """Host names of the service; None for any, as on a Unix socket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_more = True

        async def receive_part() -> Message:
            nonlocal has_more
            part = await receive()
            has_more = part["type"] == "http.request" and part.get("more_body", False)
            return part

        async def send_last(message: Message) -> None:
            left = LARGEST_REST_BYTES if message.get("status", 0) >= 400 else 0
            while has_more and left > 0:
                left -= len((await receive_part()).get("body", b""))
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive_part, send_last)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and host_name(headers.get("host", "")) not in self.hosts:
            return self._refused("host", 421, "this service has another name; use the one that it was started with")
        if scope["path"] in OPEN_PATHS:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if self.token is not None and (kind.lower() != "bearer" or not _is_same(given.strip(), self.token)):
            sentence = "this service needs its token; send it as `Authorization: Bearer TOKEN`"
            return self._refused("token", 401, sentence, {"www-authenticate": "Bearer"})
        if len(self.answering) > MOST_REQUESTS:
            return self._refused("busy", 503, "too many requests are being answered; ask again", {"retry-after": "1"})
        return None

    def _refused(self, reason: str, status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
        self.refused[reason] += 1
        return JSONResponse({"error": sentence}, status, headers)


def _is_same(given: str, token: str) -> bool:
    """Compare digests: the time of this shows nothing of the token, not even its length."""
    return hmac.compare_digest(*(hashlib.sha256(text.encode()).digest() for text in (given, token)))


def host_name(header: str) -> str:
    """Return the name in a `Host` header, without its port and the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() and ":" not in name else header).lower()


class ServiceError(Exception):
    """The service cannot be started so; one sentence with the remedy."""


class ServiceOptions(Record):
    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """With a port it listens there, else on the Unix socket."""
    token: str | None = None
    state: Path
    """Folder of the jobs."""
    queue: int
    """Jobs that may be open."""
    keep: int
    """Ended jobs that can still be fetched."""
    settings: dict[DeviceKind, JudgeSettings]
    """The usual settings on each kind of device."""
    where: Where = Where()


def serve(options: ServiceOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ServiceError`, `StoreError`, `ExecutorError` and `MachineError`."""
    if not is_loopback(options.host) and any(one.jail == "off" for one in options.settings.values()):
        raise ServiceError(
            f"--host {options.host} is open to others, who could do all that you can without a jail; "
            "leave out --jail off"
        )
    protect_this_process()
    os.environ.pop(TOKEN, None)  # processes that this one starts have no use for it
    with ExitStack() as stack:
        usual = os.umask(0o077)  # only for files that are made here: workers share theirs with the users of their jails
        stack.enter_context(_alone(options.state))
        listening = stack.enter_context(_listening(options))
        store = JobStore(options.state / JOBS, options.keep)
        os.umask(usual)
        stack.callback(store.close)
        asyncio.run(_serve(options, store, listening))


async def _serve(options: ServiceOptions, store: JobStore, listening: socket.socket) -> None:
    async with AsyncExitStack() as stack:
        texts = TextReaders()
        stack.push_async_callback(texts.close)
        groups = _groups(options)
        for group in groups.values():
            await group.open()
            stack.push_async_callback(group.close)
        queue = JobQueue(store, groups, options.queue)
        await queue.start()
        stack.push_async_callback(queue.stop)
        words = ", ".join(f"{name}: {len(one.devices)} x {one.devices[0].kind}" for name, one in groups.items())
        print(f"kernelwright serve: {_address(listening)}, on {words}; SIGTERM ends it", flush=True)
        await _Server(_config(options, queue, texts), queue).serve(sockets=[listening])


def _groups(options: ServiceOptions) -> dict[DeviceKind, DeviceGroup]:
    """Return the devices by kind. Where there are GPUs, `where` is about them, and the processor starts when needed."""
    main, where = "cuda" if "cuda" in options.settings else "cpu", options.where
    return {
        name: DeviceGroup(partial(executor_for, where, settings, at_once=True), where.kind)
        if name == main
        else DeviceGroup(partial(executor_for, Where(builders=where.builders), settings))
        for name, settings in options.settings.items()
    }


def _config(options: ServiceOptions, queue: JobQueue, texts: TextReaders) -> uvicorn.Config:
    hosts = LOOPBACK | {options.host.lower()} if options.port is not None and options.token is None else None
    served = application(queue, texts, DeadlineProtocol.late)
    return uvicorn.Config(
        Guard(served, queue.counts.refused, DeadlineProtocol.answering, options.token, hosts),
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
        timeout_graceful_shutdown=CLOSING_S,
    )


class _Server(uvicorn.Server):
    """Ends after the running judgings have ended; at the second signal at once."""

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
        raise ServiceError(f"{state} cannot be made ({error.strerror}); choose another --state folder") from None
    lock = open_own(state / "lock")
    try:
        if not try_lock(lock, fcntl.LOCK_EX):
            raise ServiceError(f"another service has its jobs in {state}; end it, or choose another --state folder")
        yield
    finally:
        os.close(lock)


@contextmanager
def _listening(where: ServiceOptions) -> Iterator[socket.socket]:
    if where.port is None:
        path = where.socket or default_socket()
        with _unix(path) as found:
            found.listen()  # requests from here on are answered once the service is up
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
            raise ServiceError(f"{where.host}:{where.port} cannot be used ({error.strerror}); choose another") from None
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
                f"the socket {path} cannot be made ({error.strerror}); choose another --socket"
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
    """Return whether no other machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(listening: socket.socket) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    return f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"
