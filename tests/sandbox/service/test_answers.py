import asyncio
import json
import math
import os
import signal
import threading

import pytest

from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.service.app import LARGEST_BODY_BYTES
from kernelwright.sandbox.service.requests import LONGEST_TEXT
from tests.support.service import job, listening, until

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with listening(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="module")
def client(service):
    return service.client()


def test_a_job_is_taken_and_fetched(service, client):
    taken = client.ask("POST", "/v1/jobs", job(number=1))
    assert taken.status == 202
    assert (taken.body["problem"], taken.body["device"], taken.body["report"]) == ("cumsum", "cpu", None)
    service.go()
    found = client.ask("GET", f"/v1/jobs/{taken.body['id']}?wait=60")
    assert (found.status, found.body["state"], found.body["begun"]) == (200, "done", 1)
    assert found.body["report"]["outcome"] == "failed" and found.body["error"] is None


def test_who_waits_gets_the_job_that_has_ended_or_as_it_is(service, client):
    service.go()
    found = client.ask("POST", "/v1/jobs?wait=60", job(number=2))
    assert (found.status, found.body["state"]) == (200, "done")
    found = client.ask("POST", "/v1/jobs?wait=0.1", job(number=3))
    assert (found.status, found.body["report"]) == (202, None)
    service.go()
    client.ask("GET", f"/v1/jobs/{found.body['id']}?wait=60")


def test_the_evidence_comes_where_it_is_asked_for(service, client):
    service.go()
    found = client.ask("POST", "/v1/jobs?wait=60&evidence=1", job(number=4)).body
    assert found["verdict"]["reason"] == "wrong" and found["judged_on"]["kind"] == "turned"


def test_the_steps_of_a_job_come_as_events(service, client):
    taken = client.ask("POST", "/v1/jobs", job(number=5)).body
    threading.Timer(2.0, service.go).start()  # once the stream is open: what came before is no event of it
    stream = client.ask("GET", f"/v1/jobs/{taken['id']}/events").text
    steps = [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]
    assert steps == ["queued", "building", "built", "judging", "done"]
    assert "event: done" in client.ask("GET", f"/v1/jobs/{taken['id']}/events").text


def test_a_job_is_cancelled(service, client):
    taken = client.ask("POST", "/v1/jobs", job(number=6)).body
    assert client.ask("DELETE", f"/v1/jobs/{taken['id']}").body["state"] == "cancelled"
    assert client.ask("GET", f"/v1/jobs/{taken['id']}").body["state"] == "cancelled"
    service.go()


@pytest.mark.parametrize("method, path", [("GET", ""), ("DELETE", ""), ("GET", "/events")])
def test_a_job_that_is_none_is_not_there(client, method, path):
    assert client.ask(method, f"/v1/jobs/{'0' * 32}{path}").status == 404


def test_a_problem_of_the_catalog_is_told_and_taken_as_it_is_told(service, client):
    found = client.ask("GET", "/v1/problems/rms_norm?dtype=bf16").body
    problem = load_problem("rms_norm", dtype="bf16")
    assert found.pop("digest") == problem.digest and found == problem.model_dump(mode="json")
    service.go()
    given = {"record": found, "source": "x = 1"}
    assert client.ask("POST", "/v1/jobs?wait=60", given).body["state"] == "done"
    assert client.ask("GET", "/v1/problems").body["problems"] == list(catalog_names())


def test_the_service_says_what_it_is(client):
    facts = client.ask("GET", "/v1/service").body
    assert facts["devices"]["cpu"][0]["kind"] == "turned" and facts["room"] == {"cpu": 3}
    assert client.ask("GET", "/healthz").status == 200
    assert client.metrics()["kernelwright_queue_limit"] == 100


def test_every_path_of_the_description_is_answered_and_every_field_is_in_it(client):
    document = client.ask("GET", "/openapi.json").body
    assert {"/v1/jobs", "/v1/jobs/{id}", "/v1/problems/{name}", "/healthz", "/metrics"} <= set(document["paths"])
    fields = document["components"]["schemas"]["JobRequest"]["properties"]
    assert {"problem", "text", "source", "device", "effort", "priority", "key"} <= set(fields)
    references = set(part.partition('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:])
    assert references <= set(document["components"]["schemas"])
    page = client.ask("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html") and "/v1/jobs" in page.text
    for path, methods in document["paths"].items():
        for method in methods:
            assert client.ask(method.upper(), path.replace("{name}", "gelu").replace("{id}", "x")).status != 405


@pytest.mark.parametrize(
    "change, said",
    [
        ({"text": None}, "give the problem as one of"),
        ({"problem": "rms_norm"}, "give the problem as one of"),
        ({"source": None}, "source"),
        ({"sauce": ""}, "sauce"),
        ({"text": "x = 1"}, "has no Model"),
        ({"text": "(" * 1000}, "syntax error"),
        ({"name": "a\nb"}, "names no problem"),
        ({"device": "cuda"}, "judges on cpu alone"),
        ({"device": "cuda:7"}, "device"),
        ({"dtype": "float8"}, "no dtype"),
        ({"settings": {"jail": "off"}}, "settings.jail"),
        ({"settings": {"without": ["families"]}}, "settings.without"),
        ({"settings": {"max_pairs": 10**9}}, "settings.max_pairs"),
        ({"priority": 1000}, "priority"),
        ({"beat": math.inf}, "beat"),
        ({"stage": "build"}, "stage"),
        ({"source": "x" * (LONGEST_TEXT + 1)}, "source"),
    ],
)
def test_what_can_not_be_met_is_refused_in_a_sentence(client, change, said):
    request = {name: value for name, value in (job() | change).items() if value is not None}
    found = client.ask("POST", "/v1/jobs", request)
    assert (found.status, said in found.body["error"]) == (422, True), found.text


@pytest.mark.parametrize(
    "change, said",
    [
        ({"name": "a\nb"}, "names no problem"),
        ({"name": "x" * 1000}, "names no problem"),
        ({"source": "x = 1"}, "has no Model"),
        ({"source": "x" * (LONGEST_TEXT + 1)}, "send a shorter one"),
        ({"tolerance": {"factor": -1}}, "tolerance.factor"),
        ({"tolerance": {"factor": math.inf}}, "tolerance.factor"),
        ({"tolerance": {"factor": 1e308}}, "tolerance.factor"),
        ({"tolerance": {"floor_ulp": math.inf}}, "tolerance.floor_ulp"),
        ({"origin": {"format": "kernelbench", "id": "level1/1", "details": {"x": math.inf}}}, "Infinity"),
        ({"more": 1}, "more"),
    ],
)
def test_a_record_that_is_no_problem_is_refused(client, change, said):
    record = load_problem("rms_norm").model_dump(mode="json") | change
    found = client.ask("POST", "/v1/jobs", {"record": record, "source": "x = 1"})
    assert (found.status, said in found.body["error"]) == (422, True), found.text


@pytest.mark.parametrize(
    "problem", ["/etc/passwd", "../tests/texts.py", "tests/texts.py", "KernelBench::level1/1", "."]
)
def test_no_client_names_a_file_of_the_host(client, tmp_path, problem):
    (tmp_path / "secret.py").write_text("secret")
    for name in (problem, str(tmp_path / "secret.py")):
        found = client.ask("POST", "/v1/jobs", {"problem": name, "source": "x"})
        assert found.status == 422 and "in the catalog" in found.body["error"]
        assert client.ask("GET", f"/v1/problems/{name.replace('/', '%2F')}").status == 404


@pytest.mark.parametrize(
    "body", ["", "nonsense", "[]", '{"source": "\\ud800", "problem": "rms_norm"}', "[" * 100_000, '{"a":' * 100_000]
)
def test_what_is_no_request_is_refused(client, body):
    assert client.ask("POST", "/v1/jobs", body).status == 422


def test_what_is_no_text_no_json_or_no_path_is_refused(client):
    assert client.ask("POST", "/v1/jobs", b"\xff\xfe").status == 400
    body = json.dumps(job())
    assert client.ask("POST", "/v1/jobs", body, Content_Type="text/plain").status == 415
    assert client.ask("GET", "/v2/jobs").status == 404
    assert client.ask("PUT", "/v1/jobs", "{}").status == 405


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "301", "x", ""])
def test_a_wait_that_is_none_is_refused(client, wait):
    assert client.ask("POST", f"/v1/jobs?wait={wait}", job()).status == 422


def test_a_key_belongs_to_one_request(service, client):
    first = client.ask("POST", "/v1/jobs", job(number=7, key="k")).body
    assert client.ask("POST", "/v1/jobs", job(number=7, key="k")).body["id"] == first["id"]
    assert client.ask("POST", "/v1/jobs", job(number=8, key="k")).status == 409
    service.go()
    known = client.ask("POST", "/v1/jobs?wait=60", job(number=7, key="k"))
    assert (known.status, known.body["state"]) == (200, "done")


def test_a_body_that_is_too_large_is_refused(client):
    assert client.ask("POST", "/v1/jobs", "x" * (LARGEST_BODY_BYTES + 1)).status == 413
    chunked = (b"%x\r\n" % 2**20 + b"x" * 2**20 + b"\r\n" for _ in range(LARGEST_BODY_BYTES // 2**20 + 2))
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert client.raw(head + b"".join(chunked) + b"0\r\n\r\n", whole=False).startswith(b"HTTP/1.1 413 ")


def test_a_full_queue_says_when_to_come_again(tmp_path):
    with listening(tmp_path, limit=1) as service:
        client = service.client()
        client.ask("POST", "/v1/jobs", job(number=1))
        full = client.ask("POST", "/v1/jobs", job(number=2))
        assert full.status == 429 and int(full.headers["retry-after"]) >= 1
        assert client.metrics()['kernelwright_refused_total{reason="full"}'] == 1
        service.go()
        until(lambda: client.ask("POST", "/v1/jobs", job(number=3)).status == 202)


def test_without_the_token_nothing_is_told(tmp_path):
    with listening(tmp_path, token=TOKEN) as service:
        for wrong in (None, "", TOKEN[:-1], TOKEN + "x", "ü"):
            client = service.client()
            headers = {} if wrong is None else {"Authorization": f"Bearer {wrong}".encode()}
            for path in ("/v1/jobs/x", "/v1/service", "/metrics", "/docs", "/openapi.json", "/v1/problems"):
                found = client.ask("GET", path, **headers)
                assert found.status == 401 and set(found.body) == {"error"}
            assert client.ask("POST", "/v1/jobs", job(), **headers).status == 401
        assert service.client().ask("GET", "/v1/service", Authorization=f"Basic {TOKEN}").status == 401
        assert service.client().ask("GET", "/healthz").status == 200
        assert service.client(TOKEN).ask("GET", "/v1/service").status == 200


def test_another_name_is_not_answered_where_there_is_no_token(tmp_path):
    with listening(tmp_path, hosts=frozenset({"127.0.0.1", "localhost"})) as service:
        client = service.client()
        assert client.ask("GET", "/v1/service").status == 200
        assert client.ask("GET", "/v1/service", Host="localhost:1").status == 200
        assert client.ask("GET", "/v1/service", Host="attacker.example").status == 421


def test_slow_and_half_sent_requests_are_ended(tmp_path):
    with listening(tmp_path, receive_s=0.5) as service:
        client = service.client()
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
        for part in (b"", b"GET /healthz HT", head, head + b"\r\n", head + b"\r\n" + b"{" * 500):
            assert client.raw(part).startswith(b"HTTP/1.1 408 ")
        assert service.late["slow"] == 5
        assert client.ask("GET", "/healthz").status == 200
        assert client.metrics()["kernelwright_jobs_open"] == 0


def test_while_it_drains_it_takes_no_job_and_tells_of_those_it_has(tmp_path):
    with listening(tmp_path) as service:
        client = service.client()
        taken = client.ask("POST", "/v1/jobs", job(number=1)).body
        until(lambda: service.executor.order)
        draining = asyncio.run_coroutine_threadsafe(service.queue.drain(), service.loop)
        until(lambda: client.ask("GET", "/healthz").status == 503)
        refused = client.ask("POST", "/v1/jobs", job(number=2))
        assert refused.status == 503 and int(refused.headers["retry-after"]) > 0
        assert client.ask("GET", f"/v1/jobs/{taken['id']}").body["state"] == "judging"
        service.go()
        draining.result(60)
        assert client.ask("GET", f"/v1/jobs/{taken['id']}").body["state"] == "done"


def test_a_request_that_breaks_off_leaves_no_job(tmp_path):
    with listening(tmp_path) as service:
        client = service.client()
        connection = client.connected()
        connection.connect()
        connection.sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connection.sock.sendall(b"Content-Length: 1000\r\n\r\n{")
        connection.close()
        until(lambda: client.metrics().get('kernelwright_refused_total{reason="half"}') == 1)
        assert client.metrics()["kernelwright_jobs_open"] == 0


def test_who_does_not_read_the_answers_is_let_go(tmp_path):
    with listening(tmp_path, send_s=0.5) as service:
        client = service.client()
        connection = client.connected()
        connection.connect()
        asking = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 2000

        def send():
            try:
                connection.sock.sendall(asking)
            except OSError:
                return

        threading.Thread(target=send, daemon=True).start()
        until(lambda: service.late["unread"] == 1)
        assert client.ask("GET", "/healthz").status == 200


def test_who_waits_for_a_job_and_goes_away_is_forgotten_and_the_job_is_not(tmp_path):
    with listening(tmp_path) as service:
        client = service.client()
        taken = client.ask("POST", "/v1/jobs", job()).body
        for _ in range(20):
            connection = client.connected()
            connection.request("GET", f"/v1/jobs/{taken['id']}?wait=300")
            connection.close()
        until(lambda: len(service.server.server_state.tasks) <= 1)
        service.go()
        assert client.ask("GET", f"/v1/jobs/{taken['id']}?wait=60").body["state"] == "done"


@pytest.mark.slow
def test_a_source_that_can_not_be_parsed_in_time_costs_its_own_client_alone(tmp_path, monkeypatch):
    with listening(tmp_path) as service:
        client, refused = service.client(), []
        heavy = "x = f'" + "{a}" * 80_000 + "'"  # takes time that grows with its square
        monkeypatch.setattr("kernelwright.sandbox.service.requests.ANSWER_S", 2.0)

        def attacking():
            refused.append(client.ask("POST", "/v1/jobs", job(heavy)).status)

        found, attack = [], [threading.Thread(target=attacking) for _ in range(2)]
        innocent = threading.Thread(target=lambda: found.append(client.ask("POST", "/v1/jobs", job(number=1))))
        for thread in (*attack, innocent):
            thread.start()
            thread.join(0.2)
        for thread in (*attack, innocent):
            thread.join()
        assert found[0].status == 202, found[0].text
        assert set(refused) <= {202, 422}


def test_a_parser_that_dies_costs_one_request_and_no_other(tmp_path):
    with listening(tmp_path) as service:
        client = service.client()
        assert client.ask("POST", "/v1/jobs", job(number=1)).status == 202
        process = asyncio.run_coroutine_threadsafe(service.texts.small.get(), service.loop).result()
        service.texts.small.put_nowait(process)
        os.kill(process.pid, signal.SIGSTOP)
        refused = []
        asking = threading.Thread(target=lambda: refused.append(client.ask("POST", "/v1/jobs", job(number=2))))
        asking.start()
        until(lambda: process.asked)
        os.kill(process.pid, signal.SIGKILL)
        asking.join()
        assert refused[0].status == 422 and "cannot be parsed" in refused[0].body["error"]
        assert client.ask("POST", "/v1/jobs", job(number=3)).status == 202
