"""What a connection may cost: its time, its size, and who may use it at all."""

import asyncio
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

import h11
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOG = logging.getLogger("kernelwright.sandbox.service")
LARGEST_BODY_BYTES = 4 * 2**20
MOST_BODIES = 32
"""That are taken in at a time."""
LARGEST_HEAD_BYTES = 16 * 2**10
RECEIVE_S = 20.0
"""From the first byte that is waited for until the whole request is there."""
SEND_S = 30.0
"""How long a client may leave an answer unread."""
MOST_CONNECTIONS = 512
LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
OPEN_PATHS = frozenset({"/healthz"})
"""What is answered without a token: it says nothing but that the service is there."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class TooLarge(Exception):
    """The body is larger than any that is taken."""


class DeadlineProtocol(H11Protocol):
    """A connection that is ended where its client is slow: in sending a request whole, or in reading an answer."""

    receive_s, send_s = RECEIVE_S, SEND_S
    late: ClassVar[Counter[str]] = Counter()
    """Connections that were ended so, by reason."""
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._receiving, self._sending):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        self._expect_rest()

    def on_response_complete(self) -> None:
        """What is left of the answer has to be read in time, also where the connection is closed after it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sending is not None and not self.transport.is_closing():
            self._sending.cancel()
            self._sending = None

    def _expect_rest(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            if self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None
        elif self._receiving is None and not self.transport.is_closing():
            self._receiving = self.loop.call_later(self.receive_s, self._end_slow)

    def _expect_reading(self) -> None:
        self._sending = self._sending or self.loop.call_later(self.send_s, self._end_unread)

    def _end_slow(self) -> None:
        self.late["slow"] += 1
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(LATE)
        self.transport.close()
        self._expect_reading()

    def _end_unread(self) -> None:
        self.late["unread"] += 1
        self.transport.abort()


class Access(NamedTuple):
    token: str | None = None
    hosts: Collection[str] | None = None
    """Names by which the service may be asked; None for any, as on a Unix socket."""


class Guard:
    """Lets through who shows the token; where there is none, who asks for a name that web pages elsewhere have not."""

    def __init__(self, app: ASGIApp, access: Access, refused: Counter[str]) -> None:
        self._app, self._hosts, self._refused = app, access.hosts, refused
        self._token = None if access.token is None else _digest(access.token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self._token is not None and scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            # Of digests: nothing of the token shows in how long this takes, not even its length.
            if not hmac.compare_digest(_digest(given.strip().encode()), self._token) or kind.lower() != "bearer":
                self._refused["token"] += 1
                answer = told(401, "this service asks for its token; send it as `Authorization: Bearer TOKEN`")
                answer.headers["www-authenticate"] = "Bearer"
                return answer
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            self._refused["host"] += 1
            return told(421, "this service is asked by another name; use the one that it was started with")
        return None


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _host(header: str) -> str:
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.strip("[]").lower()


def told(status: int, sentence: str, **more: Any) -> JSONResponse:
    return JSONResponse({"error": sentence} | more, status)


async def read_body(request: Request) -> bytes:
    """The body. Raises `TooLarge`, before it is read where its length is told."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > LARGEST_BODY_BYTES:
        raise TooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise TooLarge
    return bytes(body)
