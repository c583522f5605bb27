"""What the README says is done here, line by line."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import serving
from tests.model_server import fenced
from tests.texts import PROBLEM, RIGHT

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RMS_NORM = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight
"""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    lines = [line.split("   #")[0].partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("export ")]


def test_the_readme_names_commands():
    assert len([line for line in commands() if line.startswith("kernelwright ")]) >= 10


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make ")])
def test_the_makefile_has_what_the_readme_types(line):
    done = subprocess.run([*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_no_other_kinds_of_commands():
    assert {line.split()[0] for line in commands()} == {"make", "kernelwright"}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """What the README's user has done by then: a run, and a verdict on record."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "my_problem.py").write_text(PROBLEM)
    (folder / "my_right.py").write_text(RIGHT)
    with serving(fenced(RIGHT)) as server:
        start = ["kernelwright", "run", "my_problem.py", "--model", "m", "--out", "runs/TIME", "--attempts", "1"]
        assert called(start, folder, server).returncode in (0, 1)  # on a busy machine, too noisy to keep a kernel
        judged = called(["kernelwright", "judge", "my_problem.py", "my_right.py", "--json"], folder, server)
    (folder / "record.json").write_text(judged.stdout)
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/problem.py").write_text(PROBLEM)
    (tmp_path / "my_problem.py").write_text(PROBLEM)
    (tmp_path / "my_right.py").write_text(RIGHT)
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    return tmp_path


def marked(line):
    """Whole searches and gradients take longest; what they do is tested elsewhere too."""
    words = line.split()
    takes_long = words[1] in ("run", "resume", "replay") or "--backward" in words
    return pytest.param(line, marks=pytest.mark.long if takes_long else ())


@pytest.mark.slow
@pytest.mark.parametrize("line", [marked(line) for line in commands() if line.startswith("kernelwright ")])
def test_a_command_of_the_readme_works(folder, earlier, model_server, line):
    candidate = RIGHT if re.search("my_problem|path/to|runs/", line) else RMS_NORM
    (folder / "candidate.py").write_text(candidate)
    server = model_server(fenced(candidate))
    words = [word.replace("http://localhost:8000/v1", server.base_url) for word in shlex.split(line)]
    prepare(folder, words, earlier)
    if "softmax_rows" in words:
        # One right answer for all problems there is not: what is said is asked, and the wrong ones are told.
        assert called([*words, "--attempts", "1"], folder, server).returncode == 1
        return
    if "run" in words:
        words += ["--attempts", "1"]
    done = called(words, folder, server)
    assert done.returncode == 0, done.stdout + done.stderr


def prepare(folder, words, earlier):
    """What the README's user has by then: a run, a record, folders of problems and candidates."""
    for path, text in {
        "problems/mine.py": PROBLEM,
        "candidates/mine/first.py": RIGHT,
        "KernelBench/level1/1_Sum.py": PROBLEM,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "reply.txt").write_text(fenced(RIGHT))
    if words[1] != "run" and any(word.startswith("runs") and word != "runs/theirs" for word in words):
        shutil.copytree(earlier / "runs", folder / "runs")
    if "runs/A" in words:
        (folder / "runs/TIME").rename(folder / "runs/A")
        shutil.copytree(folder / "runs/A", folder / "runs/B")
    if "runs/theirs" in words:
        (folder / "runs/theirs").mkdir(parents=True)
        (folder / "runs/theirs/level_1_problem_1_sample_0_kernel.py").write_text(RIGHT)
    if "record.json" in words:
        shutil.copy(earlier / "record.json", folder)


def called(words, folder, server):
    environment = os.environ | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
    # -P: a user's folder named `problems` is no package of ours.
    command = [sys.executable, "-P", "-m", "kernelwright.cli", *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_python_of_the_readme_works(folder):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Interval(" in done.stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_the_links_of_the_readme_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_the_needed_programs_are_those_that_the_readme_names():
    needed = README.partition("Needed: ")[2].partition(".\n")[0]
    for program in ("make", "g++"):
        assert program in needed and shutil.which(program)
