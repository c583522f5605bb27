"""`run --provider`: each way of being answered leads from a prompt to verdicts, by the commands a person types."""

import json
from functools import partial

import pytest

from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from tests.support.commands import run_with
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.servers import fake_reply


@pytest.fixture
def called(tmp_path):
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "other.py").write_text(PROBLEM.replace("dim=1", "dim=-1"))
    return partial(run_with, tmp_path)


@pytest.mark.long
def test_a_batch_goes_from_prompts_to_verdicts(called, model_server):
    server = model_server(fake_reply(RIGHT), fake_reply(WRONG))
    started = called("run", "problem.py", "--provider", "batch", "--model", "m", "--attempts", 2, "--out", "out")
    assert started.returncode == 1, started.stderr
    assert "wait for a batch" in started.stderr
    sent = called("batch", "send", "out", "--base-url", server.base_url)
    assert sent.returncode == 0, sent.stderr
    fetched = called("batch", "fetch", "out", "--wait", "--every-s", "0.01", "--base-url", server.base_url)
    assert fetched.returncode == 0, fetched.stderr
    done = called("resume", "out", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["passed"], row["failures"]) == (1, {"failed at check": 1})
    assert called("replay", "out").returncode == 0


@pytest.mark.slow
def test_a_batch_opens_the_asks_of_every_problem_at_once(called):
    words = ["--provider", "batch", "--model", "m", "--set", "measure=false", "--out", "out"]
    started = called("run", "problem.py", "other.py", *words)
    assert started.returncode == 1, started.stderr
    exported = called("batch", "export", "out", "asks.jsonl", "--json")
    assert json.loads(exported.stdout)["requests"] == 6  # three drafts each


@pytest.mark.long
def test_a_folder_of_tasks_goes_from_prompt_to_verdict(called, tmp_path):
    words = ["run", "problem.py", "--provider", "files", "--folder", "tasks", "--attempts", 1, "--out", "out"]
    started = called(*words)
    assert started.returncode == 1, started.stderr
    (task,) = (tmp_path / "tasks").glob("*.task.md")
    task.with_name(task.name.replace(".task.", ".answer.")).write_text(fake_reply(RIGHT))
    done = called("resume", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_cache_answers_a_second_run(called, model_server):
    server = model_server("I am sorry, I can not help with that.")
    for out in ("one", "two"):
        words = ["--model", "m", "--base-url", server.base_url, "--attempts", 1, "--cache", "answers", "--out", out]
        assert called("run", "problem.py", *words).returncode == 1
    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_simulated_run_is_played_without_a_judge_and_kept_out_of_rankings(called):
    done = called("run", "problem.py", "--provider", "simulated", "--attempts", 12, "--out", "out", "--json")
    assert done.returncode in (0, 1), done.stderr
    row = json.loads(done.stdout)
    assert row["attempts"] == 12
    board = json.loads(called("leaderboard", "out", "--json").stdout)
    assert [(one["device"], one["weak"]) for one in board["boards"]] == [("simulated", ["problem"])]


@pytest.mark.slow
def test_roles_and_further_models_are_reached_from_the_command_line(called, model_server, tmp_path):
    server = model_server("I am sorry, I can not help with that.")
    words = ["--model", "small", "--base-url", server.base_url, "--attempts", 3, "--out", "out"]
    words += ["--set", "measure=false", "--set", "advisers=plan,reflect", "--set", "models=strong", "--set", "stall=2"]
    assert called("run", "problem.py", *words).returncode == 1
    with RunLog.open(tmp_path / "out") as log:
        asks = [attempt.ask for attempt in fold("problem", log.events("problem")).attempts]
    assert [ask.role for ask in asks] == ["plan", *["propose"] * 3]
    assert [ask.model for ask in asks] == [*["small"] * 3, "strong"]
