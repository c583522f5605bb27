"""Clients that send slowly, much, or nothing: they cost themselves an answer, and nobody else."""

import asyncio
import contextlib

import pytest

from kernelwright.sandbox.service.requests import LONGEST_TEXT, SMALL_LETTERS
from kernelwright.sandbox.service.server import host_name
from tests.support.service import job, listening, until

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@pytest.fixture
def connect():
    """Opens connections that send some bytes and are then silent."""
    with contextlib.ExitStack() as stack:

        def opened(client, data=b"", count=1):
            sockets = []
            for _ in range(count):
                connection = client.connected(60)
                connection.connect()
                sockets.append(stack.enter_context(contextlib.closing(connection.sock)))
                sockets[-1].sendall(data)
            return sockets

        yield opened


def test_half_sent_bodies_delay_nobody(tmp_path, connect):
    with listening(tmp_path) as service:
        connect(service.client(), HEAD + b"{", 100)
        until(lambda: len(service.server.server_state.tasks) == 100)
        assert service.client().ask("POST", "/v1/jobs", job()).status == 202
        assert not service.late


def test_beyond_the_bytes_of_all_bodies_the_one_begun_first_is_refused(tmp_path, connect, monkeypatch):
    monkeypatch.setattr("kernelwright.sandbox.service.app.MOST_BODY_BYTES", 1_000_000)
    with listening(tmp_path, receive_s=60) as service:
        client = service.client()
        first, second = (connect(client, HEAD + b" " * 600_000)[0] for _ in range(2))
        until(lambda: client.metrics().get('kernelwright_refused_total{reason="bodies"}'))
        for one in (first, second):  # a refusal comes once the rest is there, and the second is read to its end
            one.sendall(b" " * 400_000)
        assert first.recv(2**16).startswith(b"HTTP/1.1 503 ")
        assert second.recv(2**16).startswith(b"HTTP/1.1 422 ")
        assert client.ask("POST", "/v1/jobs", job()).status == 202


def test_texts_that_are_slow_to_parse_delay_no_smaller_one(tmp_path):
    with listening(tmp_path) as service:
        for free in (service.texts.large, service.texts.large, service.texts.small):
            asyncio.run_coroutine_threadsafe(free.get(), service.loop).result()
        assert len(job()["source"]) < SMALL_LETTERS < LONGEST_TEXT
        assert service.client().ask("POST", "/v1/jobs", job()).status == 202


def test_idle_connections_make_room_for_others(tmp_path, connect):
    with listening(tmp_path, most=20) as service:
        idle = connect(service.client(), count=40)
        assert service.client().ask("GET", "/healthz").status == 200
        assert service.client().ask("POST", "/v1/jobs", job()).status == 202
        assert idle[0].recv(2**16).startswith(b"HTTP/1.1 408 ")
        assert len(service.server.server_state.connections) <= 20


def test_beyond_the_requests_that_are_answered_at_a_time_only_health_is(tmp_path, connect, monkeypatch):
    monkeypatch.setattr("kernelwright.sandbox.service.server.MOST_REQUESTS", 3)
    with listening(tmp_path) as service:
        client = service.client()
        connect(client, HEAD + b"{", 9)
        waiting = (
            f"GET /v1/jobs/{client.ask('POST', '/v1/jobs', job()).body['id']}?wait=300 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        connect(client, waiting.encode(), 3)
        until(lambda: len(service.protocol.answering) == 3)
        full = client.ask("GET", "/v1/service")
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert client.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "header, name",
    [
        ("localhost", "localhost"),
        ("LOCALHOST:8000", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[::1]:8000", "::1"),
        ("attacker.example:80", "attacker.example"),
        ("", ""),
        (":80", ":80"),
    ],
)
def test_the_name_of_a_host_is_read_without_its_port(header, name):
    assert host_name(header) == name
