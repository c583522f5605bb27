"""Two processes and one run's folder: the second writer is refused at once, and a reader is not."""

import os
import subprocess
import sys
import threading

import pytest

from kernelwright.agent.config import ProviderOptions
from kernelwright.agent.log.store import RunLog
from kernelwright.evals.runs import run
from tests.support.commands import run_with
from tests.support.problems import PROBLEM, WRONG
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow
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
