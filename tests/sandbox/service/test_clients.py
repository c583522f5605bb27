"""Clients of ours: what they send, what they make of the answer, and that they come back after a broken connection."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kernelwright import JudgePool, JudgeSettings, JudgingError, judge_many
from kernelwright.agent.scheduler import evaluating
from kernelwright.sandbox.pool import client as remote
from kernelwright.sandbox.pool.client import RefusedJob, ServiceAddress, ServiceClient, default_socket
from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.pool.judge_pool import Where, executor_for
from kernelwright.sandbox.service.app import facts
from kernelwright.sandbox.verdict.judge_version import own_versions
from tests.support.commands import run_with
from tests.support.executors import SUM, right, wrong
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.servers import fake_reply
from tests.support.service import FEW, ROOT, Service, job, listening, until

QUICK = JudgeSettings(**FEW)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with listening(tmp_path_factory.mktemp("service")) as found:
        yield found


def address(service):
    return f"http://127.0.0.1:{service.port}"


@pytest.mark.parametrize(
    "text, found",
    [
        ("unix:/a/b", ("/a/b", "http://localhost")),
        ("unix:", (str(default_socket()), "http://localhost")),
        ("http://host:8000", (None, "http://host:8000")),
        ("http://[::1]:8000/", (None, "http://[::1]:8000")),
        ("https://host", (None, "https://host")),
    ],
)
def test_an_address_is_read(text, found):
    assert ServiceAddress.of(text) == found


@pytest.mark.parametrize("text", ["", "host:8000", "http://", "ftp://host", "http://host:port", "http://host/path"])
def test_what_is_no_address_is_said(text):
    with pytest.raises(ExecutorError, match="give unix:PATH"):
        ServiceAddress.of(text)


def test_judging_asks_the_service(service):
    service.go(2)
    found = judge_many([("rms_norm", "x = 1"), ("rms_norm", "y = 1 \udcff")], server=address(service))
    told = [(one.index, one.problem, one.passed, one.error) for one in found]
    assert told == [(number, "rms_norm", False, None) for number in range(2)]
    assert found[0].report["reason"] == "wrong"


def test_what_the_service_refuses_is_an_error_of_that_pair_and_where_none_is_it_is_said_at_once(service, tmp_path):
    found = judge_many([("rms_norm", "x" * 2**21)], server=address(service))
    assert "source" in found[0].error
    with pytest.raises(JudgingError, match=r"unix:.*`kernelwright serve`"):
        judge_many([("rms_norm", "x")], server=f"unix:{tmp_path}/none")


def test_a_refusal_reaches_a_client_that_still_sends(service, tmp_path):
    large = job("x" * 2**25)
    with pytest.raises(RefusedJob, match="larger than"):
        asyncio.run(ServiceClient(address(service)).judge(large))
    with listening(tmp_path, token="a-token-of-the-test") as guarded:
        with pytest.raises(ExecutorError, match="token"):
            asyncio.run(ServiceClient(address(guarded)).judge(large))
        assert not guarded.late


@pytest.mark.parametrize("chosen", [{"jail": "off"}, {"threads": 1}, {"without": ("placebo",)}, {"call_timeout_s": 9}])
def test_what_is_the_service_s_own_to_choose_can_not_be_asked_for(service, chosen):
    with pytest.raises(ExecutorError, match=f"{next(iter(chosen))} is the service's own"):
        executor_for(Where(server=address(service)), JudgeSettings(**chosen))


def test_who_is_cancelled_cancels_its_job(service):
    async def go():
        async with JudgePool(server=address(service)) as judging:
            asking = asyncio.create_task(judging.judge("rms_norm", "z = 1"))
            while not service.queue.open_jobs:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(go())
    until(lambda: not service.queue.open_jobs)
    assert service.queue.counts.ended["cancelled"] == 1
    service.go()


def test_who_is_cancelled_while_it_sends_its_job_has_it_cancelled(tmp_path):
    with listening(tmp_path) as slow:
        free = slow.texts.small  # no request is read until one is there again
        readers = [asyncio.run_coroutine_threadsafe(free.get(), slow.loop).result() for _ in range(free.qsize())]

        async def go():
            asking = asyncio.create_task(ServiceClient(address(slow)).judge(job()))
            while not slow.server.server_state.tasks:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.sleep(0)
            for reader in readers:
                slow.loop.call_soon_threadsafe(free.put_nowait, reader)
            await asyncio.gather(asking, return_exceptions=True)
            return asking.cancelled()

        assert asyncio.run(go())
        until(lambda: slow.queue.counts.accepted)
        assert slow.queue.counts.ended["cancelled"] == 1 and not slow.queue.open_jobs


REFUSED = b'HTTP/1.0 429 Busy\r\ncontent-type: application/json\r\n\r\n{"error": "as many jobs wait as it takes"}'


@pytest.mark.parametrize("said", [b"", b"nonsense", REFUSED])
def test_who_is_cancelled_is_not_held_by_a_service_that_takes_no_job(monkeypatch, said):
    monkeypatch.setattr(remote, "PARTING_S", 60 if said else 0.1)

    async def go():
        came, cancelled = asyncio.Event(), asyncio.Event()

        async def answer(reader, writer):
            came.set()
            await cancelled.wait()
            writer.write(said)
            if not said:
                await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            asking = asyncio.create_task(ServiceClient(f"http://127.0.0.1:{port}").judge({}))
            await came.wait()
            asking.cancel()
            cancelled.set()
            await asyncio.gather(asking, return_exceptions=True)
            return asking.cancelled()

    assert asyncio.run(go())


async def test_an_executor_of_the_service_has_its_conditions_and_gives_its_verdicts(service):
    executor = executor_for(Where(server=address(service)), QUICK)
    async with Dispatcher(executor) as dispatcher:
        service.go(3)
        found = await asyncio.gather(*(dispatcher.judge(one) for one in (right(1), right(2), wrong(1))))
        devices = dispatcher.devices
    assert [one.verdict.reason for one in found] == ["wrong"] * 3
    (theirs,) = facts(service.queue).devices["cpu"]
    assert {one.kind for one in devices} == {"turned"} and len(devices) == 6
    settings = json.loads(devices[0].conditions.settings)
    assert settings == json.loads(theirs["conditions"]["settings"]) | FEW


def test_what_pytorch_takes_can_be_asked_of_a_service(service):
    async def go():
        async with evaluating(Where(server=address(service)), QUICK) as evaluator:
            service.go()
            return await evaluator.measure(right(1).problem)

    assert asyncio.run(go()).reason == "wrong"  # the device of this test says so of everything


def test_a_service_of_another_version_or_without_the_device_is_not_asked(service, monkeypatch):
    def opened(settings):
        return asyncio.run(executor_for(Where(server=address(service)), settings).open())

    with pytest.raises(ExecutorError, match="has no cuda; it has: cpu"):
        opened(JudgeSettings(device="cuda"))
    for name, own in own_versions().items():
        theirs = own_versions() | {name: own + 1}
        with monkeypatch.context() as patched, pytest.raises(ExecutorError, match=f"{name} {own + 1}.* has {own}"):
            patched.setattr("kernelwright.sandbox.service.app.own_versions", lambda theirs=theirs: theirs)
            opened(JudgeSettings())


def test_a_token_is_shown_or_asked_for(tmp_path, monkeypatch):
    with listening(tmp_path, token="a-token-of-the-test") as guarded:
        with pytest.raises(ExecutorError, match=r"token.* KERNELWRIGHT_TOKEN"):
            asyncio.run(ServiceClient(address(guarded)).facts())
        monkeypatch.setenv("KERNELWRIGHT_TOKEN", "a-token-of-the-test")
        assert asyncio.run(ServiceClient(address(guarded)).facts())["queue"] == 100


def test_a_full_service_is_asked_again(tmp_path):
    with listening(tmp_path, limit=1) as small:
        small.client().ask("POST", "/v1/jobs", job(number=1))
        threading.Timer(0.5, small.go, [2]).start()
        (found,) = judge_many([("rms_norm", "x = 1")], server=address(small))
        assert found.report is not None


def test_who_waits_for_a_service_that_is_gone_is_told_so_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(remote, "SILENCE_S", 0.1)
    monkeypatch.setattr(remote, "PATIENCE_S", 1.0)
    with listening(tmp_path) as gone:
        client = ServiceClient(address(gone))
        asyncio.run(client.facts())

    async def ask(times):
        return await asyncio.gather(*(client.facts() for _ in range(times)), return_exceptions=True)

    assert all(isinstance(one, ExecutorError) for one in asyncio.run(ask(3)))
    said = capsys.readouterr()
    assert "lost the service" in said.err and address(gone) in said.err
    assert said.err.count("\n") == 1 and not said.out
    asyncio.run(ask(1))
    assert "lost the service" in capsys.readouterr().err  # it is another wait


@contextlib.contextmanager
def answering(*answers):
    """The address of a server that gives these answers, each a status, a type and a body; the last one for ever.

    In the place of one that is None it closes the connection.
    """
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer is None:
                return
            status, kind, body = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


JSON, HTML = "application/json", "text/html"
FACTS = (200, JSON, b'{"judge_version": 1, "devices": {}, "room": {}}')


@pytest.mark.parametrize(
    "answer",
    [
        (501, HTML, b"<h1>Unsupported method</h1>"),
        (404, HTML, b"<h1>Not found</h1>"),
        (404, JSON, b'{"detail": "Not Found"}'),
        (404, JSON, b'{"error": {"message": "Invalid URL", "code": null}}'),
        (404, JSON, b'{"error": "path not found"}'),
        (401, JSON, b'{"error": {"message": "no API key"}}'),
        (200, JSON, b'{"object": "list", "data": []}'),
        (200, JSON, b"[1]"),
        (200, HTML, b"<h1>Welcome</h1>"),
        (302, HTML, b""),
        (502, HTML, b"<h1>Bad gateway</h1>"),
    ],
)
def test_what_is_no_service_is_told_with_its_address(answer):
    with answering(answer) as at:
        said = rf"{at} .*\(status {answer[0]}\)"
        with pytest.raises(ExecutorError, match=said):
            asyncio.run(ServiceClient(at).facts())
        with pytest.raises(JudgingError, match=said):
            judge_many([("rms_norm", "x = 1")], server=at)


@pytest.mark.parametrize("ask", ["judge rms_norm c.py", "score rms_norm .", "run rms_norm --model m --attempts 1"])
def test_a_command_at_what_is_no_service_ends_with_2(tmp_path, ask):
    (tmp_path / "rms_norm").mkdir()
    for path in ("c.py", "rms_norm/c.py"):
        (tmp_path / path).write_text("class ModelNew: ...")
    with answering((501, HTML, b"<h1>Unsupported method</h1>")) as at:
        more = ["--base-url", "http://127.0.0.1:9/v1", "--out", "out"] if ask.startswith("run") else []
        found = run_with(tmp_path, *ask.split(), *more, "--server", at, OPENAI_API_KEY="none")
    assert found.returncode == 2, found.stderr
    assert at in found.stderr and "(status 501)" in found.stderr


@pytest.mark.parametrize("gone", [None, (502, HTML, b"<h1>Bad gateway</h1>")], ids=["no answer", "that of a proxy"])
def test_a_service_that_is_back_soon_is_not_told_of(monkeypatch, capsys, gone):
    monkeypatch.setattr(remote, "SILENCE_S", 60)
    with answering(FACTS, gone, gone, FACTS) as at:
        client = ServiceClient(at)
        for _ in range(2):
            assert asyncio.run(client.facts())["judge_version"] == 1
    assert capsys.readouterr() == ("", "")


def test_a_service_that_fails_at_one_job_gives_no_reason_and_is_still_one():
    with answering(FACTS, (500, "text/plain", b"Internal Server Error")) as at:
        client = ServiceClient(at)
        asyncio.run(client.facts())
        with pytest.raises(RefusedJob, match=f"{at} answered 500"):
            asyncio.run(client.judge({}))


def test_a_request_that_comes_too_slowly_is_no_sign_of_another_server():
    with answering((408, HTML, b"")) as at, pytest.raises(RefusedJob, match="in time"):
        asyncio.run(ServiceClient(at).judge({}))


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"], ids=["none", "no HTTP", "cut off"]
)
def test_half_an_answer_is_none(answer):
    async def ask():
        async def say(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
            await ServiceClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").facts()

    with pytest.raises(ExecutorError, match="no service answers"):
        asyncio.run(ask())


@pytest.mark.slow
def test_judge_and_score_ask_the_service(tmp_path):
    service = Service(tmp_path)
    at = service.start().at
    (tmp_path / "cumsum.py").write_text(PROBLEM)
    for name, source in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / "candidates" / "cumsum").mkdir(parents=True, exist_ok=True)
        (tmp_path / "candidates" / "cumsum" / f"{name}.py").write_text(source)
    try:
        more = ("--pairs", 4, "--json", "--server", at)
        judged = run_with(tmp_path, "judge", "cumsum.py", "candidates/cumsum/right.py", *more)
        assert judged.returncode == 0, judged.stderr
        assert json.loads(judged.stdout)["outcome"] == "passed"
        wrong = run_with(tmp_path, "judge", "cumsum.py", "candidates/cumsum/wrong.py", KERNELWRIGHT_SERVER=at)
        assert wrong.returncode == 1 and "failed at check" in wrong.stdout, wrong.stderr
        own = run_with(tmp_path, "judge", "cumsum.py", "candidates/cumsum/wrong.py", "--threads", 1, "--server", at)
        assert own.returncode == 2 and "threads" in own.stderr and "service's own" in own.stderr
        both = run_with(tmp_path, "score", "cumsum.py", "candidates", "--devices", 2, "--server", at)
        assert both.returncode == 2 and "--devices" in both.stderr
        outcomes = {"cumsum/right.py": "passed", "cumsum/wrong.py": "failed"}
        for _ in range(2):  # the second time all is on record
            scored = run_with(tmp_path, "score", "cumsum.py", "candidates", "--json", "--server", at)
            assert scored.returncode == 0, scored.stderr
            lines = [json.loads(line) for line in scored.stdout.splitlines()]
            assert {one["candidate"]: one["outcome"] for one in lines} == outcomes
    finally:
        service.kill()


@pytest.mark.slow
@pytest.mark.long
def test_a_search_is_judged_by_the_service_and_says_so(tmp_path, model_server):
    service = Service(tmp_path)
    client, models = service.start(), model_server(fake_reply(RIGHT))
    (tmp_path / "cumsum.py").write_text(PROBLEM)
    asked = f"run cumsum.py --model m --base-url {models.base_url} --attempts 1 --out out --server {client.at}"
    try:
        done = run_with(tmp_path, *asked.split(), OPENAI_API_KEY="none")
        assert done.returncode in (0, 1), done.stderr  # on a busy machine, too noisy to keep a kernel
        assert client.metrics()['kernelwright_jobs_total{outcome="passed"}'] >= 1
        header = json.loads((tmp_path / "out" / "header.json").read_text())
        assert header["config"]["executor"]["server"] == client.at
    finally:
        service.kill()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("ask", ["judge cumsum.py wrong.py --json", "score cumsum.py candidates --json"])
def test_a_command_whose_service_is_killed_says_that_it_waits_and_ends_with_its_verdict(tmp_path, ask):
    service = Service(tmp_path)
    client = service.start()
    (tmp_path / "candidates" / "cumsum").mkdir(parents=True)
    (tmp_path / "cumsum.py").write_text(PROBLEM)
    for path in ("wrong.py", "candidates/cumsum/wrong.py"):
        (tmp_path / path).write_text(f"import time\ntime.sleep(2)\n{WRONG}")  # so that it is killed before the end
    words = [sys.executable, "-P", "-m", "kernelwright", *ask.split(), "--server", client.at]
    environment, pipes = os.environ | {"PYTHONPATH": str(ROOT)}, dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, **pipes) as asking:
        try:
            until(lambda: client.metrics()["kernelwright_jobs_accepted_total"] == 1)
            service.kill()
            lines = iter(asking.stderr.readline, "")
            assert any("lost the service" in line and client.at in line for line in lines)
            service.start()
            found = asking.stdout.read()
        finally:
            service.kill()
    assert [json.loads(line)["outcome"] for line in found.splitlines()] == ["failed"]


@pytest.mark.slow
def test_a_client_whose_service_is_killed_gets_its_one_verdict_from_the_next(tmp_path):
    service = Service(tmp_path)
    client = service.start()
    found = []
    pairs = [(SUM, f"{WRONG}\n# {n}") for n in range(4)]
    asking = threading.Thread(target=lambda: found.extend(judge_many(pairs, settings=QUICK, server=client.at)))
    asking.start()
    try:
        until(lambda: client.metrics()["kernelwright_jobs_accepted_total"] == 4)
        service.kill()
        service.start()
        asking.join(300)
        assert [one.report["outcome"] for one in found] == ["failed"] * 4
        ended = client.metrics()
        assert ended["kernelwright_jobs_open"] == 0
        assert ended["kernelwright_jobs_accepted_total"] == 0
    finally:
        service.kill()


def test_the_variable_names_the_service_of_a_search_too(tmp_path):
    words = ("run", "rms_norm", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--attempts", "1")
    found = run_with(tmp_path, *words, KERNELWRIGHT_SERVER=f"unix:{tmp_path}/none", OPENAI_API_KEY="none")
    assert found.returncode == 2 and "service" in found.stderr and "unix:" in found.stderr
