"""Suites of problems, a run from Python, and the version in its header."""

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from kernelwright.agent.config import ProviderOptions
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.evals import version
from kernelwright.evals.runs import DEMO, SEEDS, run, suite
from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.problems import PROBLEM


def started(tmp_path, settings, problem="rms_norm"):
    simulated = ProviderOptions(kind="simulated")
    run([problem], out=tmp_path / "out", provider=simulated, settings=settings, attempts=1)
    return json.loads((tmp_path / "out/header.json").read_text())


def test_it_is_judged_by_the_settings_that_are_given_where_the_target_is_for(tmp_path):
    judging = started(tmp_path, JudgeSettings(threads=1, memory_bytes=2**31))["config"]["judging"]
    assert (judging["device"], judging["threads"], judging["memory_bytes"]) == ("cpu", 1, 2**31)


def test_a_device_that_they_name_is_kept(tmp_path):
    assert started(tmp_path, JudgeSettings(device="cuda:1"))["config"]["judging"]["device"] == "cuda:1"


def test_a_problem_may_be_given_by_its_path(tmp_path):
    (tmp_path / "rowsum.py").write_text(PROBLEM)
    assert list(started(tmp_path, None, tmp_path / "rowsum.py")["problems"]) == ["rowsum"]


def test_a_problem_without_its_list_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"'rms_norm'.* list$"):
        run("rms_norm", out=tmp_path / "out")


def test_a_cast_problem_is_kept_as_it_is(tmp_path):
    problem = load_problem("rms_norm", dtype="bf16")
    assert started(tmp_path, None, problem)["problems"] == {"rms_norm": problem.digest}


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_the_recorded_suite_holds_every_problem_with_a_story_and_the_demo_no_other(target):
    assert suite("recorded", target) == tuple(name for name in catalog_names() if target in recorded_targets(name))
    assert set(suite("demo", target)) <= set(suite("recorded", target))


def test_every_seed_has_a_story_for_a_gpu():
    assert all("cuda" in recorded_targets(name) for name in SEEDS)


def test_a_suite_is_that_of_the_dtype_where_answers_are_recorded_for_it_and_else_the_same():
    assert suite("demo", "cpp", "bfloat16") == DEMO["cpp"]
    assert suite("recorded", "cpp", "float64") == suite("recorded", "cpp")


ROOT = Path(__file__).parents[2]


def absent(name):
    raise PackageNotFoundError(name)


def test_packages_that_are_not_installed_have_the_version_of_their_checkout(monkeypatch):
    monkeypatch.setattr(version, "version", absent)
    (said,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version.own_version() == said


def test_without_a_checkout_nobody_knows(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "version", absent)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert (version.own_version(), version.commit()) == ("unknown", None)
