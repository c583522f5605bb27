import json
import os
from pathlib import Path

import pytest

from tests.support.problems import PROBLEM, RIGHT
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow
WATCH = """
import ctypes, json, os, sys


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C":  # what finds torch and does not import it never asks for this
            get_dumpable = 3
            dumpable = ctypes.CDLL(None).prctl(get_dumpable, 0, 0, 0, 0)
            said = {"argv": sys.argv, "policy": os.environ.get("OMP_WAIT_POLICY"), "dumpable": dumpable}
            with open(os.environ["TORCH_IMPORTS"], "a") as file:
                file.write(json.dumps(said) + chr(10))


sys.meta_path.insert(0, Watch())
"""


@pytest.fixture
def watched(kernelwright, files, tmp_path):
    """Runs a command; how each process of ours stood when it imported torch. Jailed children are not watched."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch/sitecustomize.py").write_text(WATCH)
    for folder in ("tasks", "ours/sum"):
        (tmp_path / folder).mkdir(parents=True)
    for place, text in (("tasks/sum.py", PROBLEM), ("ours/sum/a.py", RIGHT)):
        (tmp_path / place).write_text(text)

    def call(*words, code=0):
        seen = tmp_path / "imports"
        seen.write_text("")
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join([str(tmp_path / "watch"), root, os.environ.get("PYTHONPATH", "")])
        done = kernelwright(*words, PYTHONPATH=path, TORCH_IMPORTS=str(seen))
        assert done.returncode == code, done.stdout + done.stderr
        return [json.loads(line) for line in seen.read_text().splitlines()]

    return call


@pytest.fixture(autouse=True)
def no_policy_of_the_users(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def stood_ready(imports):
    assert imports, "no process imported torch, so nothing is shown"
    for one in imports:
        assert (one["policy"], one["dumpable"]) == ("passive", 0), one


COMMANDS = {
    "judge": ("judge", "problem.py", "right.py", "--effort", "screen"),
    "score": ("score", "tasks", "ours"),
    "problems check": ("problems", "check", "problem.py"),
}


@pytest.mark.parametrize(
    "name", ["judge", *(pytest.param(name, marks=pytest.mark.long) for name in COMMANDS if name != "judge")]
)
def test_a_command_that_judges_is_set_up_before_it_imports_torch(watched, name):
    stood_ready(watched(*COMMANDS[name]))


@pytest.fixture
def asking(model_server):
    server = model_server(fake_reply(RIGHT))
    return ("--set", "measure=false", "--model", "m", "--base-url", server.base_url, "--attempts", 1, "--out", "out")


@pytest.mark.long
def test_a_run_is_set_up_before_it_imports_torch_and_so_is_a_leaderboard_that_judges_again(watched, asking):
    stood_ready(watched("run", "problem.py", *asking))
    stood_ready(watched("leaderboard", "out", "--verify", 1))


@pytest.mark.long
def test_what_goes_on_with_a_run_is_set_up_before_it_imports_torch(watched, tmp_path):
    waiting = ("--set", "measure=false", "--provider", "files", "--model", "m", "--attempts", 1, "--out", "later")
    watched("run", "problem.py", *waiting, code=1)
    (task,) = (tmp_path / "later" / "tasks").glob("*.task.md")
    task.with_name(task.name.replace(".task.", ".answer.")).write_text(fake_reply(RIGHT))
    stood_ready(watched("resume", "later"))


@pytest.mark.long
def test_a_run_on_workers_of_its_own_sets_them_up_and_itself(watched, asking):
    imports = watched("run", "problem.py", "--devices", 1, *asking)
    stood_ready(imports)
    assert len(imports) > 1


@pytest.mark.long
def test_a_replay_judges_nothing(watched, asking):
    watched("run", "problem.py", *asking)
    assert watched("replay", "out") == []
