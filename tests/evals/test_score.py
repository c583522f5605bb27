"""Candidate files find their problems, and each is in one shard."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evals.metrics import level_of
from kernelwright.evals.score import CandidateFile, Shard, collect_candidates, collect_problems
from kernelwright.problems import ProblemError
from kernelwright.sandbox.authenticity.scan import candidate_of
from tests.support.problems import PROBLEM, RIGHT


@pytest.fixture
def bench(tmp_path):
    """A folder of problems as KernelBench has it, with two of one name."""
    for place in ("level1/23_Softmax.py", "level1/4_Sum.py", "level2/23_Gemm.py", "level2/4_Sum.py"):
        (tmp_path / "problems" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "problems" / place).write_text(PROBLEM)
    return tmp_path


def belongs(bench, *places):
    for place in places:
        path = bench / "candidates" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RIGHT)
    problems = collect_problems(str(bench / "problems")).problems
    found, strangers = collect_candidates(bench / "candidates", problems)
    return {file.name: file.problem for file in found} | dict.fromkeys(strangers)


def test_problems_are_named_by_their_path_out_of_which_the_level_is_read(bench):
    names = list(collect_problems(str(bench / "problems")).problems)
    assert names == ["level1/23_Softmax", "level1/4_Sum", "level2/23_Gemm", "level2/4_Sum"]
    assert (level_of("level2/23_Gemm"), level_of("rms_norm")) == ("level2", None)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("23_Softmax.py", "level1/23_Softmax"),
        ("23_Softmax__model-a_7.py", "level1/23_Softmax"),
        ("23_Softmax-7.py", "level1/23_Softmax"),
        ("model-a/23_Softmax/7.py", "level1/23_Softmax"),
        ("level_2_problem_23_sample_0_kernel.py", "level2/23_Gemm"),
        ("level2/4_Sum.py", "level2/4_Sum"),
        ("4_Sum.py", None),
        ("23_Softmaximal.py", None),
        ("other.py", None),
    ],
)
def test_a_candidate_belongs_to_the_problem_that_its_place_names(bench, place, problem):
    assert belongs(bench, place) == {place: problem}


def test_a_broken_problem_does_not_hide_the_others(bench):
    (bench / "problems/level1/9_Broken.py").write_text("x = (")
    found = collect_problems(str(bench / "problems"))
    assert len(found.problems) == 4
    assert "syntax error" in found.broken["level1/9_Broken"]


def test_a_folder_with_a_manifest_and_a_catalog_name_are_one_problem():
    assert "rms_norm" in collect_problems("problems/catalog").problems
    assert list(collect_problems("rms_norm").problems) == ["rms_norm"]


def test_a_folder_without_problems_and_a_missing_one_of_candidates_are_told(tmp_path):
    with pytest.raises(ProblemError, match=r"no \.py file"):
        collect_problems(str(tmp_path))
    with pytest.raises(ProblemError, match="there is no folder"):
        collect_candidates(tmp_path / "absent", {})


def test_text_that_is_no_python_is_a_candidate_for_the_scan_to_refuse():
    assert candidate_of("x = (").language == "python"


FILES = [CandidateFile(f"p{i % 3}", f"{i}.py", Path(f"{i}.py")) for i in range(60)]


@given(st.integers(1, 12))
def test_each_file_is_in_exactly_one_shard(parts):
    shards = [Shard(number, parts) for number in range(1, parts + 1)]
    assert all(sum(shard.has(file) for shard in shards) == 1 for file in FILES)
