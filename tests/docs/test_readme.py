import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, blocks, lines, runnable
from tests.docs.walking import FILES, RMS_NORM, called, write
from tests.support.problems import PROBLEM, RIGHT
from tests.support.servers import fake_reply, http_stub

README = ROOT / "README.md"


def test_the_readme_begins_with_two_commands_of_make():
    assert [line.words for line in lines(README)][:2] == [["make", "run"], ["make", "test"]]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """What the README's user has done by then: a run, and a verdict on record."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "my_problem.py").write_text(PROBLEM)
    (folder / "my_right.py").write_text(RIGHT)
    with http_stub(fake_reply(RIGHT)) as server:
        short = "--attempts 1 --set measure=false --set confirm=0"
        start = shlex.split(f"kernelwright run my_problem.py --model m --out runs/TIME {short}")
        assert called(start, folder, server).returncode in (0, 1)  # on a busy machine, too noisy to keep a kernel
        judged = called(
            shlex.split("kernelwright judge my_problem.py my_right.py --effort search --json"), folder, server
        )
    (folder / "record.json").write_text(judged.stdout)
    return folder


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, FILES | {"my_strategy.py": STRATEGY})
    return tmp_path


STRATEGY = """
from kernelwright.agent.strategies import draft, drafts_made

def propose(view, slots, rng):
    return [draft(view, drafts_made(view))]
"""


def marked(line):
    """What judges takes long, and tests of the command line judge the same way."""
    judging = {"run", "resume", "replay", "judge", "score", "check", "--verify"} & set(line.words)
    long = judging and "simulated" not in line.words
    return pytest.param(line, marks=pytest.mark.long if long else (), id=line.text)


@pytest.mark.slow
@pytest.mark.parametrize("line", [marked(line) for line in runnable(README)])
def test_a_command_of_the_readme_works(folder, earlier, model_server, line):
    candidate = RIGHT if re.search("my_problem|path/to|runs/|KernelBench", line.text) else RMS_NORM
    (folder / "candidate.py").write_text(candidate)
    server = model_server(fake_reply(candidate))
    words = [word.replace("http://localhost:8000/v1", server.base_url) for word in line.words]
    take_over(earlier, folder, words)
    if "softmax_rows" in words:
        # One right answer for all problems there is not: what is said is asked, and the wrong ones are told.
        assert called([*words, "--attempts", "1"], folder, server).returncode == 1
        return
    if "run" in words:
        words += ["--attempts", "16" if "simulated" in words else "1"]  # which answers are right is drawn
    done = called(words, folder, server)
    if "check" in words and "too short to be timed" in done.stdout:  # on a busy machine, a problem of this size
        assert done.returncode == 1
        return
    assert done.returncode == 0, done.stdout + done.stderr


def take_over(earlier, folder, words):
    if any(word.startswith("runs") and word != "runs/theirs" for word in words):
        shutil.copytree(earlier / "runs", folder / "runs", dirs_exist_ok=True)
    if "runs/A" in words:
        (folder / "runs/TIME").rename(folder / "runs/A")
        shutil.copytree(folder / "runs/A", folder / "runs/B")
    if "record.json" in words:
        shutil.copy(earlier / "record.json", folder)


@pytest.mark.long
@pytest.mark.slow
def test_the_python_of_the_readme_works(tmp_path):
    (code,) = blocks(README, "python")
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Interval(" in done.stdout


def test_the_needed_programs_are_those_that_the_readme_names():
    needed = README.read_text().partition("Needed: ")[2].partition(".\n")[0]
    for program in ("make", "g++"):
        assert program in needed and shutil.which(program)
