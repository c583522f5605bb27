"""A service in a process of its own, with real candidates on the processor: what is promised."""

import json
import stat
import threading
from pathlib import Path

import pytest

from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Passed
from tests.support.problems import RIGHT, WRONG
from tests.support.service import FEW, Client, Service, job, until

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-test"
SNOOP = """
import socket
import torch


def reached():
    found = []
    for path in {paths!r}:
        try:
            open(path, "rb").read(1)
            found.append(path)
        except OSError:
            pass
    for family, address in ((socket.AF_UNIX, {socket!r}), (socket.AF_INET, ("127.0.0.1", {port}))):
        try:
            socket.socket(family).connect(address)
            found.append(address)
        except OSError:
            pass
    return found


found = reached()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if found:
            raise RuntimeError(f"reached {{found}}")
        return torch.cumsum(x, dim=1)
"""


@pytest.fixture
def started(tmp_path):
    """Starts services; whatever still runs at the end is ended."""
    services = []

    def start(*words, **environment):
        folder = tmp_path / f"service-{len(services)}"
        folder.mkdir()
        services.append(Service(folder, *words, **environment))
        return services[-1]

    yield start
    for service in services:
        if service.process is not None and service.process.poll() is None:
            service.kill()


def test_right_wrong_and_broken_candidates_get_the_verdicts_of_judge(started):
    client = started().start()
    sent = {"right": RIGHT, "wrong": WRONG, "broken": "class ModelNew(:"}
    asked = {name: client.ask("POST", "/v1/jobs?wait=300&evidence=1", job(source)) for name, source in sent.items()}
    found = {name: answer.body for name, answer in asked.items()}
    assert [one["report"]["outcome"] for one in found.values()] == ["passed", "failed", "failed"]
    assert [found[name]["report"]["stage"] for name in ("wrong", "broken")] == ["check", "scan"]
    assert len(found["right"]["report"]["samples"][0]["candidate_ms"]) == FEW["min_pairs"]
    verdict = Passed.model_validate(found["right"]["verdict"])
    assert json.loads(json.dumps(report(verdict))) == found["right"]["report"]
    broken = {"text": job()["text"].replace("torch.cumsum", "torch.no_such_thing"), "source": RIGHT, "settings": FEW}
    error = client.ask("POST", "/v1/jobs?wait=300", broken).body["error"]
    assert error["whole_problem"] and "no_such_thing" in error["message"]


def test_after_kill_9_what_was_accepted_is_judged_once_and_what_had_ended_is_there(started):
    service = started()
    client = service.start()
    first = client.ask("POST", "/v1/jobs?wait=300", job(number=0)).body
    jobs = [client.ask("POST", "/v1/jobs", job(WRONG, number)).body["id"] for number in range(1, 4)]
    until(lambda: client.metrics()['kernelwright_stages_begun_total{stage="build"}'] > 1)
    service.kill()
    client = service.start()
    assert client.ask("GET", f"/v1/jobs/{first['id']}").body == first
    ended = [client.ask("GET", f"/v1/jobs/{one}?wait=300").body for one in jobs]
    assert [one["report"]["outcome"] for one in ended] == ["failed"] * 3
    assert [client.ask("GET", f"/v1/jobs/{one['id']}").body for one in ended] == ended
    assert service.end() == 0


def test_sigterm_ends_what_runs_and_keeps_the_queue(started):
    service = started()
    client = service.start()
    jobs = [client.ask("POST", "/v1/jobs", job(RIGHT, number)).body["id"] for number in range(4)]
    until(lambda: client.metrics()['kernelwright_stages_begun_total{stage="build"}'] > 0)
    waited = []
    waiting = threading.Thread(target=lambda: waited.append(client.ask("GET", f"/v1/jobs/{jobs[-1]}?wait=300").body))
    waiting.start()
    assert service.end() == 0
    waiting.join(60)
    assert waited[0]["state"] != "done"
    client = service.start()
    states = [client.ask("GET", f"/v1/jobs/{one}").body["state"] for one in jobs]
    assert "queued" in states or "judging" in states
    assert {client.ask("GET", f"/v1/jobs/{one}?wait=300").body["state"] for one in jobs} == {"done"}


@pytest.mark.long
def test_a_second_signal_ends_it_at_once_and_the_job_is_judged_by_the_next(started):
    service = started()
    client = service.start()
    hanging = RIGHT.replace("return torch.cumsum", "while True: pass\n        return torch.cumsum")
    one = client.ask("POST", "/v1/jobs", job(hanging)).body["id"]
    until(lambda: client.metrics()['kernelwright_stages_begun_total{stage="time"}'])
    service.process.terminate()
    assert service.end() == 0
    client = service.start()
    assert client.ask("GET", f"/v1/jobs/{one}?wait=300").body["report"]["outcome"] == "failed"


def test_the_socket_and_the_jobs_are_for_this_user_alone(started):
    service = started()
    service.start()
    assert stat.S_IMODE((service.folder / "socket").stat().st_mode) == 0o600
    for path in (service.folder / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE((service.folder / "state").stat().st_mode) == 0o700
    second = Service(service.folder)
    with pytest.raises(AssertionError, match="another service"):
        second.start()
    assert service.end() == 0
    assert not (service.folder / "socket").exists()


def test_beyond_the_loopback_a_token_is_needed(started):
    with pytest.raises(AssertionError, match="give a token"):
        started("--port", "0", "--host", "0.0.0.0").start()
    with pytest.raises(AssertionError, match="leave out --jail off"):
        started("--port", "0", "--host", "0.0.0.0", "--jail", "off", KERNELWRIGHT_TOKEN=TOKEN).start()
    with pytest.raises(AssertionError, match="shorter than 16"):
        started("--port", "0", KERNELWRIGHT_TOKEN="short").start()
    service = started("--port", "0", "--host", "0.0.0.0", KERNELWRIGHT_TOKEN=TOKEN)
    client = service.start()
    port = client.at.rpartition(":")[2]
    assert Client(f"http://127.0.0.1:{port}").ask("GET", "/v1/service").status == 401
    assert Client(f"http://127.0.0.1:{port}", TOKEN).ask("GET", "/v1/service").status == 200


def test_a_socket_and_a_port_at_once_are_refused(started, tmp_path):
    both = started("--port", "0", "--socket", tmp_path / "a.sock")
    with pytest.raises(AssertionError, match=r"--socket \S+a.sock or --port 0"):
        both.start()
    assert both.process.wait() == 2 and not (both.folder / "state").exists()


def test_a_token_file_that_others_can_read_is_refused(started, tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    with pytest.raises(AssertionError, match="read the token"):
        started("--port", "0", "--token-file", path).start()


def test_a_candidate_reaches_neither_the_service_nor_its_jobs_nor_its_token(started):
    service = started("--port", "0", KERNELWRIGHT_TOKEN=TOKEN)
    client = service.start()
    beside = started()
    beside.start()
    state = service.folder / "state"
    paths = [str(state / "jobs.db"), str(state / "lock"), f"/proc/{service.process.pid}/environ"]
    port, socket = int(client.at.rpartition(":")[2]), str(beside.folder / "socket")
    assert all(Path(path).exists() for path in (*paths, socket))
    source = SNOOP.format(paths=paths, socket=socket, port=port)
    told = client.ask("POST", "/v1/jobs?wait=300", job(source)).body["report"]
    assert told["outcome"] == "passed", told["reason"]


def test_a_candidate_that_takes_the_memory_costs_nobody_else_a_verdict(started):
    client = started("--memory", "2GiB").start()
    hog = "import torch\nheld = [torch.ones(2**28) for _ in range(64)]\n" + RIGHT
    jobs = [client.ask("POST", "/v1/jobs", job(hog)).body["id"]]
    jobs += [client.ask("POST", "/v1/jobs", job(RIGHT, number)).body["id"] for number in range(2)]
    ended = [client.ask("GET", f"/v1/jobs/{one}?wait=300").body for one in jobs]
    assert [one["report"]["outcome"] for one in ended] == ["failed", "passed", "passed"]
