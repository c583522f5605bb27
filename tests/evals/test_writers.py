"""Processes that write one record at once: none loses what was acknowledged, and one alone goes on with a run."""

import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernelwright.agent.config import ProviderOptions
from kernelwright.agent.log.events import ProviderFailed
from kernelwright.agent.log.store import RunLog
from kernelwright.evals.runs import run
from kernelwright.evals.verdict_store import VerdictStore, run_summary
from tests.support.commands import run_with
from tests.support.problems import PROBLEM, WRONG
from tests.support.runs import writing
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow
WRITERS, EACH = 8, 100
ROOT = str(Path(__file__).parents[2])
APPEND = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from kernelwright.agent.log.events import ProviderFailed
from kernelwright.agent.log.store import RunLog

with RunLog.open(Path(sys.argv[2])) as log:
    for number in range(int(sys.argv[4])):
        word = f"{sys.argv[3]}:{number}"
        log.append(ProviderFailed(problem="one", attempt=1, message=word, retryable=True), blobs=["text of " + word])
        print(word, flush=True)
"""
JUDGE = """
import sys
sys.path.insert(0, sys.argv[1])
from datetime import UTC, datetime
from pathlib import Path
from kernelwright.evals.verdict_store import Judgement, VerdictStore
from kernelwright.sandbox.pool.executor import Conditions
from tests.support.runs import failed

conditions = Conditions(judge_version="h", device="d", torch="2", settings="{}")
with VerdictStore(Path(sys.argv[2])) as store:
    for number in range(int(sys.argv[4])):
        word = f"{sys.argv[3]}:{number}"
        about = {"problem": "one", "problem_digest": "p", "candidate": word, "candidate_digest": word}
        store.add(Judgement(**about, conditions=conditions, time=datetime.now(UTC), verdict=failed()))
        print(word, flush=True)
"""


def start(program, place, writer, count=EACH):
    words = [sys.executable, "-c", program, ROOT, str(place), str(writer), str(count)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def acknowledged(processes):
    words = []
    for process in processes:
        out, _ = process.communicate(timeout=300)
        words += out.split()
    return words


def begun(folder):
    """A run with one attempt, for which all writers have more to say."""
    with writing(folder / "run", None):
        return folder / "run"


def logged(run):
    with RunLog.open(run) as log:
        events = [event.body for event in log.events("one")]
        return [event.message for event in events if isinstance(event, ProviderFailed)]


def is_sound(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_eight_processes_that_write_one_run_lose_nothing(tmp_path):
    run = begun(tmp_path)
    said = acknowledged([start(APPEND, run, writer) for writer in range(WRITERS)])
    found = logged(run)
    assert len(said) == WRITERS * EACH
    assert sorted(found) == sorted(said)


def killed_midway(program, place):
    """Eight writers that would go on for long, killed when each has written some; what they had acknowledged."""
    processes = [start(program, place, writer, count=10**6) for writer in range(WRITERS)]
    first = [process.stdout.readline().strip() for process in processes]
    assert all(first), "a writer ended before it had written anything"
    time.sleep(0.5)
    for process in processes:
        process.kill()
    # The last line of a killed process may be cut off in the middle of its word.
    rest = [word for process in processes for word in process.communicate()[0].split("\n")[:-1]]
    return first + [word for word in rest if word]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    run = begun(tmp_path_factory.mktemp("killed"))
    return run, killed_midway(APPEND, run)


def test_writers_that_are_killed_lose_nothing_that_they_had_acknowledged_and_leave_a_sound_file(killed):
    run, said = killed
    assert set(said) <= set(logged(run))
    run, _ = killed
    assert is_sound(run / "run.db")
    assert run_summary(run).problems[0].problem == "one"
    with RunLog.open(run) as log:
        for word in logged(run):
            text = f"text of {word}"
            assert log.text(hashlib.sha256(text.encode()).hexdigest()) == text


def test_eight_processes_that_judge_into_one_file_lose_nothing(tmp_path):
    said = acknowledged([start(JUDGE, tmp_path / "scores.db", writer) for writer in range(WRITERS)])
    with VerdictStore(tmp_path / "scores.db") as store:
        assert sorted(one.candidate for one in store.read(store.path)) == sorted(said)


def test_a_file_that_another_process_is_laying_out_is_waited_for(tmp_path):
    path = tmp_path / "scores.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # meanwhile SQLite does not wait to change the journal mode
    done = threading.Timer(0.5, other.execute, ["ROLLBACK"])
    done.start()
    with VerdictStore(path) as store:
        assert store.read(store.path) == []
    assert not done.is_alive()
    other.close()


def test_judges_that_are_killed_leave_a_sound_file_with_all_that_was_acknowledged(tmp_path):
    said = killed_midway(JUDGE, tmp_path / "scores.db")
    with VerdictStore(tmp_path / "scores.db") as store:
        assert set(said) <= {one.candidate for one in store.read(store.path)}
    assert is_sound(tmp_path / "scores.db")


WORDS = [sys.executable, "-m", "kernelwright"]


@pytest.fixture
def held(tmp_path):
    """The folder above a finished run, `out`, that this process goes on with."""
    run(["rms_norm"], out=tmp_path / "out", provider=ProviderOptions(kind="simulated"), attempts=2)
    (tmp_path / "answers.jsonl").touch()
    with RunLog.open(tmp_path / "out", alone=True):
        yield tmp_path


def called(folder, *words):
    return run_with(folder, *words, OPENAI_API_KEY="k")


@pytest.mark.parametrize(
    "words", [("resume", "out"), ("batch", "import", "out", "answers.jsonl"), ("batch", "send", "out")]
)
def test_who_would_write_is_refused_with_2_and_a_sentence(held, words):
    done = called(held, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"process {os.getpid()} " in done.stderr and "run in out" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("show", "out"), ("replay", "out"), ("leaderboard", "out"), ("inspect", "out", "--export", "out.html")],
    ids=lambda words: words[0],
)
def test_who_only_reads_is_not_hindered(held, words):
    done = called(held, *words)
    assert done.returncode == 0, done.stderr


def test_a_resume_beside_a_run_under_way_asks_nothing_and_harms_nothing(tmp_path, model_server):
    (tmp_path / "problem.py").write_text(PROBLEM)
    server, asked, goes_on = model_server(fake_reply(WRONG)), threading.Event(), threading.Event()
    answer = server.completion

    def slowly(request):
        asked.set()
        goes_on.wait(60)
        return answer(request)

    server.completion = slowly
    options = ["--set", "measure=false", "--model", "m", "--base-url", server.base_url, "--attempts", "2"]
    with subprocess.Popen(
        [*WORDS, "run", "problem.py", *options, "--out", "out"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        env=os.environ | {"OPENAI_API_KEY": "k"},
    ) as first:  # fmt: skip
        assert asked.wait(60)
        second = called(tmp_path, "resume", "out")
        goes_on.set()
    assert second.returncode == 2 and f"process {first.pid} " in second.stderr
    assert (first.returncode, len(server.requests)) == (1, 2)
