"""Installed in each way, it judges; also from a folder that has packages named like our folders."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

IMPORTED = (
    "import kernelwright; [getattr(kernelwright, name) for name in kernelwright.__all__]; print(kernelwright.__file__)"
)
CANDIDATE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.amax(x, dim=1)
"""
JUDGE = """
from kernelwright import Settings, judge_many

if __name__ == "__main__":
    quick = Settings(min_pairs=4, max_pairs=4, worker_pairs=1)
    for one in judge_many([("max_rows", open("candidate.py").read())], settings=quick):
        print(one.error or one.report["outcome"])
"""


@pytest.fixture
def candidate(elsewhere):
    (elsewhere / "candidate.py").write_text(CANDIDATE)
    return "candidate.py"


def test_all_public_names_are_imported_from_where_it_is_installed(environment, elsewhere, place):
    assert environment.run("-c", IMPORTED, cwd=elsewhere).startswith(str(place))


def test_a_problem_of_the_catalog_is_judged_by_the_command(environment, elsewhere, candidate):
    said = environment.run("-m", "kernelwright", "judge", "max_rows", candidate, "--json", cwd=elsewhere)
    assert json.loads(said)["outcome"] == "passed"


def test_a_program_of_theirs_judges_in_processes_beside_it(environment, elsewhere, candidate):
    (elsewhere / "theirs.py").write_text(JUDGE)
    assert environment.run("theirs.py", cwd=elsewhere) == "passed\n"


def test_prompts_and_recorded_answers_are_found(from_wheel, elsewhere):
    from_wheel.run("-m", "kernelwright", "run", "max_rows", "--provider", "recorded", "--out", "run", cwd=elsewhere)
    assert (elsewhere / "run" / "best" / "max_rows").is_dir()


def test_a_run_is_shown_in_the_inspector(from_wheel, elsewhere):
    simulated = ("--provider", "simulated", "--attempts", "3", "--out", "run")
    from_wheel.run("-m", "kernelwright", "run", "max_rows", *simulated, cwd=elsewhere)
    from_wheel.run("-m", "kernelwright", "inspect", "run", "--export", "run.html", cwd=elsewhere)
    assert "<html" in (elsewhere / "run.html").read_text()
