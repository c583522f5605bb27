import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path

import pytest

from kernelwright.terminal import own_command
from tests.support.problems import PROBLEM, RIGHT
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow


def test_extract_prints_the_source_alone_or_says_why_there_is_none(kernelwright, tmp_path):
    (tmp_path / "reply.txt").write_text(f"<think>hm\n</think>\n{fake_reply(RIGHT)}")
    done = kernelwright("extract", "reply.txt")
    assert (done.returncode, done.stdout.strip()) == (0, RIGHT.strip())
    (tmp_path / "reply.txt").write_text("I would use shared memory.")
    done = kernelwright("extract", "reply.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kernelwright: no_code")


def test_problems_list_shows_every_problem_on_a_line(kernelwright):
    from kernelwright.problems import catalog_names

    lines = kernelwright("problems", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(catalog_names())


def test_problems_show_prints_a_source_that_runs_by_itself(kernelwright):
    shown = kernelwright("problems", "show", "rms_norm", "--size", "gpu").stdout
    compile(shown, "shown", "exec")
    assert "class Model" in shown


def test_problems_show_tells_what_a_problem_is_not_judged_on(kernelwright, tmp_path):
    from kernelwright.problems import ExcludedValues, load_problem
    from kernelwright.problems.formats.reading import write_problem

    narrow = ExcludedValues(without=("all negative", "with ties"), reason="lengths")
    write_problem(tmp_path / "narrow", load_problem("rms_norm").model_copy(update={"values": narrow}))
    shown = kernelwright("problems", "show", f"{tmp_path}/narrow").stdout
    assert "all negative, with ties" in shown


def test_problems_show_tells_what_baselines_took_on_this_machine(kernelwright, tmp_path, monkeypatch):
    from kernelwright.problems import load_problem
    from kernelwright.sandbox.backends import CpuBackend
    from kernelwright.sandbox.timing.baseline_facts import BaselineTimes
    from kernelwright.sandbox.verdict.settings import JudgeSettings
    from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing

    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * 20, baseline_ms=(2.5,) * 20)
    BaselineTimes(load_problem("rms_norm")).keep(
        Measurement(pairings=(pairing,), threads=1), CpuBackend(JudgeSettings()).place
    )
    assert ": eager 2.50 ms" in kernelwright("problems", "show", "rms_norm").stdout
    (time,) = json.loads(kernelwright("problems", "show", "rms_norm", "--json").stdout)["baselines"]
    assert (time["baseline"], time["median_ms"], time["samples"]) == ("eager", 2.5, 20)


def test_prompt_prints_the_prompt_and_counts_on_standard_error(kernelwright):
    done = kernelwright("prompt", "rms_norm", "--target", "cuda", "--device", "H200")
    assert done.returncode == 0, done.stderr
    assert "class ModelNew" in done.stdout and "NVIDIA H200" in done.stdout and "PyTorch 2.9" in done.stdout
    assert "contract" in done.stderr and "tokens" in done.stderr


def test_prompt_names_the_versions_of_this_machine(kernelwright):
    python, torch = (".".join(version.split(".")[:2]) for version in (platform.python_version(), version_of("torch")))
    assert f"Python {python} and PyTorch {torch}" in kernelwright("prompt", "rms_norm").stdout


def test_prompt_takes_versions_and_direction(kernelwright):
    words = ("--target-python", "3.8", "--target-torch", "1.13", "--target-cuda", "11.7", "--direction", "backward")
    text = kernelwright("prompt", "conv_transpose2d_strided_dilated", "--target", "cuda", *words).stdout
    assert "Python 3.8" in text and "PyTorch 1.13" in text and "CUDA 11.7" in text
    assert "Direction: backward" in text


def test_problems_check_names_a_problem_that_a_collection_has_not(kernelwright, tmp_path):
    (tmp_path / "bench" / "level1").mkdir(parents=True)
    (tmp_path / "bench" / "level1" / "1_cumsum.py").write_text(PROBLEM)
    done = kernelwright("problems", "check", "bench::level1/999")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'level1/999'" in done.stderr and "level1/1" in done.stderr


def test_a_part_of_the_machine_takes_no_more_threads_than_it_has_cores(kernelwright, files):
    cores = len(os.sched_getaffinity(0))
    (files / "candidates" / "problem").mkdir(parents=True)
    (files / "candidates" / "problem" / "right.py").write_text(RIGHT)
    done = kernelwright("score", "problem.py", "candidates", "--devices", str(cores), "--threads", str(cores + 1))
    assert done.returncode == 2, done.stderr
    assert "give at most 1\n" in done.stderr


@pytest.mark.slow
def test_doctor_ends_with_0_where_candidates_can_be_judged(kernelwright):
    done = kernelwright("doctor", "--json")
    assert done.returncode == 0, done.stdout
    states = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert {"torch", "C++ compiler", "child process"} <= states.keys()
    assert states["jail: system call filter"] == states.get("child: system call filter", "absent"), "as in a child"


@pytest.mark.parametrize("command", ["run", "judge", "extract", "prompt", "problems", "resume", "doctor"])
def test_every_command_explains_itself_without_waiting_for_torch(kernelwright, command):
    done = kernelwright(command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("started", "typed"),
    [("/there/bin/kernelwright",) * 2, ("/there/__main__.py", f"{sys.executable} -m kernelwright")],
)
def test_what_to_type_next_works_where_the_command_is_not_on_the_path(monkeypatch, tmp_path, started, typed):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [started])
    assert own_command() == typed


def script(*words, **environment):
    """Output of the console script under its own name."""
    program, env = Path(sys.executable).with_name("kernelwright"), {**os.environ, **environment}
    return subprocess.run([program, *words], env=env, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize(("typed", "found"), [("lead", "leaderboard"), ("judge --devi", "--device")])
def test_a_shell_is_told_how_a_word_goes_on(typed, found):
    asked = {"COMP_WORDS": f"kernelwright {typed}", "COMP_CWORD": str(len(typed.split()))}
    assert script(_KERNELWRIGHT_COMPLETE="complete_bash", **asked).split() == [found]


def test_completion_is_installed_where_bash_looks_for_it(tmp_path):
    undetected = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # no shell may be above this test
    script("--install-completion", "bash", HOME=str(tmp_path), **undetected)
    assert "_KERNELWRIGHT_COMPLETE" in (tmp_path / ".bash_completions" / "kernelwright.sh").read_text()
    assert "kernelwright.sh" in (tmp_path / ".bashrc").read_text()
