import json

import pytest

from kernelwright.agent.providers.provider import ProviderOptions
from kernelwright.evals.runs import run
from kernelwright.problems import load_problem
from kernelwright.sandbox.verdict.settings import Settings
from tests.support.problems import PROBLEM


def started(tmp_path, settings, problem="rms_norm"):
    simulated = ProviderOptions(kind="simulated")
    run([problem], out=tmp_path / "out", provider=simulated, settings=settings, attempts=1)
    return json.loads((tmp_path / "out/header.json").read_text())


def test_it_is_judged_by_the_settings_that_are_given_where_the_target_is_for(tmp_path):
    judging = started(tmp_path, Settings(threads=1, memory_bytes=2**31))["config"]["judging"]
    assert (judging["device"], judging["threads"], judging["memory_bytes"]) == ("cpu", 1, 2**31)


def test_a_device_that_they_name_is_kept(tmp_path):
    assert started(tmp_path, Settings(device="cuda:1"))["config"]["judging"]["device"] == "cuda:1"


def test_a_problem_may_be_given_by_its_path(tmp_path):
    (tmp_path / "rowsum.py").write_text(PROBLEM)
    assert list(started(tmp_path, None, tmp_path / "rowsum.py")["problems"]) == ["rowsum"]


def test_a_problem_without_its_list_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"'rms_norm'.* list$"):
        run("rms_norm", out=tmp_path / "out")


def test_a_cast_problem_is_kept_as_it_is(tmp_path):
    problem = load_problem("rms_norm", dtype="bf16")
    assert started(tmp_path, None, problem)["problems"] == {"rms_norm": problem.digest}
