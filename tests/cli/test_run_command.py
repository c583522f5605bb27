import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.agent.providers.test_server import Answer, Server
from tests.support.foreign import PLAIN, write_tree
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.processes import HEARING_CTRL_C
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow


def test_a_run_with_a_model_repairs_keeps_the_best_and_ends_with_0(kernelwright, files, model_server):
    server = model_server(fake_reply(WRONG), fake_reply(WRONG), fake_reply(RIGHT))
    done = kernelwright(
        "run", "problem.py", "--model", "small", "--base-url", server.base_url, "--attempts", 3, "--out", "out",
        OPENAI_API_KEY="sk-never-written-down",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed at check" in done.stdout and "passed" in done.stdout
    assert "largest error" in server.requests[2]  # the repair prompt holds the verdict
    best = ("out/best/problem/problem", "out/best/problem/candidate.py")
    assert (files / best[1]).read_text().strip() == RIGHT.strip()
    assert f"judge {' '.join(best)} " in done.stdout
    assert kernelwright("judge", *best, "--effort", "screen").returncode == 0
    for path in (files / "out").rglob("*"):
        assert path.is_dir() or b"sk-never" not in path.read_bytes()


def test_a_run_that_finds_nothing_right_ends_with_1(kernelwright, files, model_server):
    server = model_server("I am sorry, I can not help with that.")
    words = ("--set", "measure=false", "--model", "m", "--base-url", server.base_url, "--attempts", 2, "--json")
    done = kernelwright("run", "problem.py", *words)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["failures"] == {"no candidate (refusal)": 2}


def asked_and_judged(folder):
    with sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT kind, attempt FROM events WHERE kind IN ('asked', 'replied', 'judged')")
        return rows.fetchall()


@pytest.mark.parametrize(
    ("events", "more"),
    [(4, ("--set", "measure=false")), *(pytest.param(count, (), marks=pytest.mark.long) for count in (1, 7))],
)
def test_a_run_that_was_killed_goes_on_and_does_nothing_twice(kernelwright, files, model_server, events, more):
    server = model_server(*[fake_reply(WRONG + f"# {number}\n") for number in range(3)], fake_reply(RIGHT))
    words = ["run", "problem.py", "--model", "m", "--base-url", server.base_url, "--attempts", "4", "--out", "out"]
    command = [sys.executable, "-m", "kernelwright", *words, *more]
    with subprocess.Popen(command, cwd=files, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_for_events(files / "out", events)
        process.kill()
    done = kernelwright("resume", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    happened = asked_and_judged(files / "out")
    assert sorted(happened) == sorted(set(happened))
    assert {attempt for kind, attempt in happened if kind == "judged"} == {1, 2, 3, 4}


def wait_for_events(folder, count):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if (folder / "header.json").exists() and len(asked_and_judged(folder)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not come that far")


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(kernelwright, files, model_server):
    server = model_server(fake_reply(WRONG))
    words = ["run", "problem.py", "--set", "measure=false", "--model", "m", "--base-url", server.base_url]
    words += ["--attempts", "9", "--out", "out"]
    with subprocess.Popen(
        [sys.executable, "-c", HEARING_CTRL_C, *words], cwd=files, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_events(files / "out", 3)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: " in said and " resume out" in said
    assert "Traceback" not in said


def test_an_html_answer_is_told_with_its_remedy(kernelwright, files):
    with Server(Answer("<html>hello</html>")) as server:
        url = server.url.removesuffix("/v1")
        done = kernelwright("run", "problem.py", "--set", "measure=false", "--model", "m", "--base-url", url)
    assert done.returncode == 2
    assert "did you forget /v1?" in done.stderr


CRASHES = PROBLEM.replace("return torch.cumsum", "raise RuntimeError('no such thing') or torch.cumsum")
HUGE = PROBLEM.replace("torch.cumsum(x, dim=1)", "torch.cumsum(x.repeat(1 << 21, 1), dim=1)")
"""Its result takes 4 TiB, which no machine that runs this has."""
FIVE = {"first": PROBLEM, "crashes": CRASHES, "second": PROBLEM + "\n", "huge": HUGE, "third": PROBLEM + "\n\n"}


@pytest.fixture
def five(tmp_path):
    """Five problem files, two of which cannot be judged, and a right candidate for each."""
    for name, text in FIVE.items():
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / f"{name}.py").write_text(text)
        (tmp_path / "answers" / name).mkdir(parents=True)
        (tmp_path / "answers" / name / "a.py").write_text(RIGHT)
    return tmp_path


@pytest.fixture
def run_of_five(kernelwright, five, model_server):
    server = model_server(fake_reply(RIGHT))
    words = ("--model", "m", "--base-url", server.base_url, "--attempts", 1, "--out", "out")
    return kernelwright("run", *(f"{name}.py" for name in FIVE), *words)


@pytest.mark.long
def test_a_run_goes_on_past_problems_that_can_not_be_judged(kernelwright, run_of_five, five):
    done = run_of_five
    assert done.returncode == 1, done.stdout + done.stderr
    table = done.stdout[done.stdout.rindex("best speedup") :]
    assert "not judged: " in table and "RuntimeError" in table
    assert "not judged: " in table[table.index("huge") :]
    assert {path.name for path in (five / "out/best").iterdir()} == {"first", "second", "third"}
    again = kernelwright("resume", "out", "--json")
    rows = {row["problem"]: row for row in map(json.loads, again.stdout.splitlines())}
    assert again.returncode == 1
    assert [name for name, row in rows.items() if row["fault"]] == ["crashes", "huge"]
    assert all(row["stopped"] for row in rows.values()) and rows["first"]["speedup"]
    tree = kernelwright("show", "out").stdout
    assert tree.count("not judged: ") == 2


@pytest.mark.long
def test_a_batch_goes_on_past_problems_that_can_not_be_judged(kernelwright, five):
    done = kernelwright("score", "tasks", "answers")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashes, 1 file: not" in done.stdout
    assert "huge, 1 file: not" in done.stdout
    assert done.stdout.count("passed, ") == 3
    assert "2 files have no verdict" in done.stdout


@pytest.mark.long
def test_what_a_suite_names_and_can_not_be_read_has_a_line_and_a_row(kernelwright, tmp_path, model_server):
    write_tree(tmp_path / "tree")
    server = model_server(fake_reply(PLAIN.replace("class Model(", "class ModelNew(")))
    words = ("--model", "m", "--base-url", server.base_url, "--attempts", 1, "--out", "out", "--json")
    done = kernelwright("run", "--suite", "tree:level1[1,2]", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    first, left_out = map(json.loads, done.stdout.splitlines())
    assert first["passed"] == 1
    assert (left_out["problem"], left_out["fault"]) == ("tree::level1/2", "broken")
    assert f"level1/2: not judged: {left_out['stopped']}" in done.stderr
    assert len(kernelwright("resume", "out", "--json").stdout.splitlines()) == 2
