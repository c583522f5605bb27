"""The commands of the pages for judging an attempt again, run as they are."""

import os
import shutil
import subprocess
import sys

import pytest

from kernelwright.evals.inspector.pages import RunModel
from kernelwright.problems import load_problem
from tests.support.runs import passed, writing
from tests.support.search import PROBLEM

ORIGIN = {"format": "kernelbench", "id": "level1/5", "title": "5_Double.py"}
POSED = PROBLEM.model_copy(update={"name": "5_Double", "dtype": "bfloat16", "size": "file"})
SHELL = f'set -e\nkernelwright() {{ "{sys.executable}" -P -m kernelwright "$@"; }}\n'


@pytest.fixture
def model(tmp_path):
    """Of a run with a correct attempt and a reply without a candidate, in a folder with a space in its name."""
    problem = type(POSED).model_validate(POSED.model_dump() | {"origin": ORIGIN})
    with writing(tmp_path / "a run", of=problem) as writer:
        writer.attempt(passed(2.0), source=problem.source.replace("class Model(", "class ModelNew("))
        writer.attempt()
        writer.flush()
        yield RunModel(writer.log)


def done(folder, text):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.run(
        ["bash", "-c", SHELL + text], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_commands_judge_the_attempt_by_all_rules_of_its_problem(model, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = done(elsewhere, f"{model.detail('5_Double', 1)['reproduce']} --effort screen")
    assert said.returncode == 0, said.stdout + said.stderr
    problem = model.problems["5_Double"]
    again = load_problem(str(elsewhere / "problem"))
    assert again.model_copy(update={"name": problem.name, "size": problem.size}) == problem
    assert ", bfloat16" in said.stdout


@pytest.mark.slow
@pytest.mark.long
def test_with_what_the_pages_show_the_last_command_needs_no_run(model, tmp_path):
    detail, problem = model.detail("5_Double", 1), model.index()["problems"][0]
    (tmp_path / "problem").mkdir()
    (tmp_path / "candidate.py").write_text(detail["source"])
    (tmp_path / "problem" / "reference.py").write_text(model.problems["5_Double"].source)
    (tmp_path / "problem" / "problem.toml").write_text(problem["manifest"])
    shutil.rmtree(model.log.folder)
    said = done(tmp_path, f"{detail['reproduce'].split(chr(10))[-1]} --effort screen")
    assert said.returncode == 0 and ", bfloat16" in said.stdout, said.stdout + said.stderr


def test_a_reply_without_a_candidate_is_not_judged_again(model):
    assert model.detail("5_Double", 2)["reproduce"] is None
