import http.client
import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.support.runs import failed, made_run, passed, writing

pytest.importorskip("uvicorn", reason="the live view needs starlette and uvicorn")
pytestmark = pytest.mark.slow


@contextmanager
def served(folder):
    command = [sys.executable, "-m", "kernelwright", "inspect", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    folder = made_run(tmp_path_factory.mktemp("live") / "run", problems=2, attempts=8)
    with served(folder) as address:
        yield address


def ask(address, path="", host=None):
    place = address.removeprefix("http://")
    name, _, start = place.partition("/")
    connection = http.client.HTTPConnection(name, timeout=30)
    connection.request("GET", path if path.startswith("/") else f"/{start}{path}", headers={"Host": host or name})
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_it_listens_on_the_loopback_interface_and_gives_every_attempt_whole(view):
    assert view.startswith("http://127.0.0.1:")
    _, text = ask(view, "index.json")
    assert [len(one["attempts"]) for one in json.loads(text)["problems"]] == [8, 8]
    _, text = ask(view, "attempt.json?problem=problem_1&number=3")
    assert {"reply", "sections", "reproduce"} <= json.loads(text).keys()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_another_host_name_is_refused(view, host):
    assert ask(view, "index.json", host=host)[0].status == 400


@pytest.mark.parametrize(
    "path", ["attempt.json?problem=problem_1&number=99", "attempt.json?problem=x&number=1", "/run/other/index.json"]
)
def test_what_there_is_not_is_told(view, path):
    answer, text = ask(view, path)
    assert answer.status == 404
    assert "no " in text


def test_the_page_has_a_strict_policy(view):
    _, text = ask(view)
    assert "default-src &#39;none&#39;" in text
    assert "unsafe" not in text.partition("<style>")[0]


def test_the_view_follows_a_run_that_goes_on(tmp_path, chromium):
    with writing(tmp_path / "run", failed()) as writer, served(tmp_path / "run") as address:
        writer.flush()
        with chromium() as watched:
            watched.open(address)
            rows = watched.page.locator("#attempts tbody tr")
            assert rows.count() == 1
            writer.attempt(passed(2.0))
            writer.flush()
            watched.page.wait_for_function("() => document.querySelectorAll('#attempts tbody tr').length === 2")
            assert watched.errors == []


def test_a_page_of_the_view_asks_nobody_else(view, chromium):
    with chromium() as watched:
        watched.open(view)
        watched.go("#/a/problem_0/2")
        assert watched.errors == []
        assert all(one.startswith(view.partition("/run")[0]) for one in watched.requests)


def test_several_runs_are_listed(tmp_path):
    for name in ("a", "b"):
        made_run(tmp_path / name, problems=1, attempts=2)
    with served(tmp_path) as address:
        _, text = ask(address)
        assert "/run/a/" in text and "/run/b/" in text
