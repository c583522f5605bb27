"""Two judges on one processor wait for each other, whatever they are, and say so."""

import os
import subprocess
import sys
import time

import pytest

from kernelwright.sandbox.locks import NAME_BYTES, processor_lock, processor_path
from tests.support.problems import RIGHT
from tests.support.processes import holders
from tests.support.servers import fake_reply

pytestmark = [pytest.mark.slow, pytest.mark.long]
CORES = tuple(sorted(os.sched_getaffinity(0)))


def started(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "kernelwright", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OPENAI_API_KEY": "k"},
    )  # fmt: skip


LOAD = "times will be noisy"


def who_times():
    """The process that has the first core alone; None where nobody has."""
    if CORES[0] not in holders():
        return None
    named = processor_path().read_bytes()[(1 + CORES[0]) * NAME_BYTES :][:NAME_BYTES]
    return int(named.strip(b" \0") or 0)


def seen_timing(running):
    """The processes that timed until all of these have ended."""
    seen = []
    while any(one.poll() is None for one in running):
        seen.append(who_times())
        time.sleep(0.02)
    return set(seen)


def test_two_judges_and_a_run_take_turns_and_say_for_whom_they_wait(files, model_server, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(files))
    monkeypatch.setattr("tempfile.tempdir", str(files))
    server = model_server(fake_reply(RIGHT))
    search = ["run", "problem.py", "--set", "measure=false", "--model", "m", "--attempts", "2", "--out", "out"]
    with processor_lock(CORES):
        judges = [started(files, "judge", "problem.py", "right.py") for _ in range(2)]
        running = [*judges, started(files, *search, "--base-url", server.base_url)]
        said = [next(line for line in one.stderr if LOAD not in line) for one in running]
        assert {one.poll() for one in running} == {None}, said
        assert who_times() == os.getpid()
    assert all(f"process {os.getpid()} " in line and "waits for its turn" in line for line in said), said
    seen = seen_timing(running)
    ended = [(one.returncode, *one.communicate()) for one in running]
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    assert seen >= {one.pid for one in judges} and len(seen - {None, 0, os.getpid()}) == 3
    assert all("waits for its turn" in line or LOAD in line for _, _, err in ended for line in err.splitlines()), ended
    assert holders() == []
