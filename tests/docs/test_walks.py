"""What the pages in docs show is done here: each page's commands in their order, and its Python."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.docs.pages import DOCS, blocks, runnable
from tests.docs.walking import FILES, RMS_NORM, address_of, called, python_files, write
from tests.support.foreign import PLAIN
from tests.support.problems import RIGHT
from tests.support.runs import Writer, passed, problem, setting
from tests.support.servers import fake_reply, http_stub

PLAIN_RIGHT = PLAIN.replace("class Model(", "class ModelNew(")
pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture
def walk(tmp_path):
    """Does the commands of a page in a folder; `prepared` says what lies there, `answer` what every model answers."""

    def done(page, answer, extra=()):
        with http_stub(fake_reply(answer)) as server:
            # Work folders and turns of its own: what else is timed on this machine is not waited for.
            (tmp_path / "tmp").mkdir()
            for line in runnable(DOCS / page):
                words = [server.base_url if word == "URL" else word for word in line.words]
                words += [word for option, words in extra if option in line.words for word in words]
                if words[1] == "inspect" and "--export" not in words:
                    assert address_of(words, tmp_path).startswith("http://127.0.0.1:")
                    continue
                found = called(words, tmp_path, server, TMPDIR=str(tmp_path / "tmp"))
                assert found.returncode in fine(words), f"{line}: {found.stdout}{found.stderr}"
                assert "Traceback" not in found.stderr, f"{line}: {found.stderr}"

    done.folder = tmp_path
    return done


def fine(words):
    # A busy machine may find a problem of this size too short to be timed, which `check` reports with 1. A run that
    # waits for a batch, or whose first round is all that a budget allows, ends with 1.
    return (0, 1) if {"check", "run", "resume", "import"} & set(words) else (0,)


def test_the_commands_of_the_page_on_formats_work(walk):
    for number in (3, 7, 12):
        write(walk.folder, {f"KernelBench/level1/{number}_Double.py": PLAIN})
    with http_stub(fake_reply(PLAIN_RIGHT)) as server:
        run = "kernelwright run --suite kernelbench:level1[3,7,12] --model m --attempts 1 --out runs/TIME"
        assert called(run.split(), walk.folder, server).returncode in (0, 1)
    walk("formats-and-records.md", PLAIN_RIGHT)


def test_the_commands_of_the_problems_page_work(walk):
    write(walk.folder, {"KernelBench/level1/3_Double.py": PLAIN, "candidate.py": PLAIN_RIGHT})
    write(walk.folder, {"runs/theirs/level_1_problem_3_sample_0_kernel.py": PLAIN_RIGHT})
    walk("problems.md", PLAIN_RIGHT)


def test_the_tutorial_works(tmp_path):
    page = DOCS / "tutorial.md"
    files = python_files(page)
    wrong, mended = files["first.py"], files["first.py"].replace("sum / features)", "sum / features + 1e-6f)")
    assert "change `sum / features` to `sum / features + 1e-6f`" in " ".join(page.read_text().split())
    write(tmp_path, files | {"second.py": mended})
    shutil.copytree(DOCS.parent / "bench/records", tmp_path / "bench/records")
    answers = iter([wrong, mended])
    codes = iter([0, 0, 1, 0, 1, 1, 0])  # doctor, check, the wrong and the correct kernel, a run that waits twice
    for line in runnable(page):
        if line.words[1] == "resume":
            (task,) = {task.with_name(task.name.replace("task", "answer")) for task in tmp_path.rglob("*.task.md")} - {
                *tmp_path.rglob("*.answer.md")
            }
            task.write_text(f"```python\n{next(answers)}```\n")
        found = called(line.words, tmp_path)
        assert found.returncode == next(codes, 0), f"{line}: {found.stdout}{found.stderr}"
        if "first.py" in line.words:
            assert "failed at check: the output " in found.stdout  # which inputs show it first is drawn
    (use,) = [code for code in blocks(page, "python") if "load_state_dict" in code]
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_the_commands_that_look_into_a_run_work(walk):
    for name in ("TIME", "A", "B"):
        run_of_rms_norm(walk.folder / "runs" / name)
    walk("command-line.md", RIGHT)
    assert {"report.html", "picture.svg"} <= {path.name for path in walk.folder.iterdir()}


def run_of_rms_norm(folder):
    from kernelwright.agent.log.store import RunLog

    with RunLog.create(folder, [problem("rms_norm")], setting()) as log:
        import random

        writer = Writer(log, "rms_norm", random.Random(0))
        for speedup in (0.5, 1.5, 2.0):
            writer.attempt(passed(speedup))
        writer.stop()


def test_the_commands_of_the_providers_page_work(walk):
    write(walk.folder, {"answers.jsonl": ""})
    open_asks = "kernelwright run rms_norm --provider batch --model m --attempts 1 --out runs/OTHER"
    assert "wait for a batch" in called(open_asks.split(), walk.folder).stderr
    walk("prompts-and-providers.md", RMS_NORM, extra=[("run", ["--attempts", "1"]), ("--wait", ["--every-s", "0.01"])])


def test_the_commands_of_the_judge_page_work(walk):
    write(walk.folder, FILES)
    walk("judge.md", RIGHT)


def test_the_commands_of_the_extending_page_work(walk):
    write(walk.folder, python_files(DOCS / "extending.md"))
    walk("extending.md", RIGHT)


def test_no_page_with_commands_is_left_out():
    walked = {
        "command-line.md", "extending.md", "formats-and-records.md", "judge.md", "problems.md",
        "prompts-and-providers.md", "tutorial.md",
    }  # fmt: skip
    assert {page.name for page in DOCS.rglob("*.md") if runnable(page)} <= walked


LIBRARY = [code for code in blocks(DOCS / "integrate.md", "python") if "judge_many(" in code]


@pytest.mark.parametrize("number", range(len(LIBRARY)))
def test_the_python_of_the_library_section_works(tmp_path, monkeypatch, number):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY[number]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\[\d.*, 0.0\]|passed cpu.* None", done.stdout), done.stdout
