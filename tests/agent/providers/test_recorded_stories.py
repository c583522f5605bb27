"""The recorded answers that ship: each story is whole, reads well, and its ends are what the judge says they are."""

import pytest

from kernelwright.agent.providers.recorded import CATALOG, read_story, recorded_targets, story_folder
from kernelwright.agent.replies import Extraction, extract
from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK

DTYPES = (None, "bfloat16")
STORIES = [
    (problem, target, dtype)
    for dtype in DTYPES
    for problem in catalog_names()
    for target in recorded_targets(problem, CATALOG, dtype)
]
EACH = pytest.mark.parametrize(("problem", "target", "dtype"), STORIES)
FIRST_FAILURE = {
    "activation_chain": "build",
    "argmax_rows": "run",
    "conv_transpose2d_depthwise": "run",
    "conv_transpose2d_strided_dilated": "check",
    "cross_entropy": "check",
    "max_pool2d": "check",
    "min_max": "check",
    "rms_norm": "load",
}
"""The stage at which the first answer of each story for target cpp fails."""


def files(problem, target, dtype=None):
    folder = story_folder(problem, target, dtype=dtype)
    return [folder / entry.file for entry in read_story(problem, target, dtype=dtype).entries]


def candidate(path):
    found = extract(path.read_text(encoding="utf-8"))
    assert isinstance(found, Extraction), found
    return Candidate(source=found.source, language=found.language)


BRIEF = ("argmax_rows",)
"""Judged in every run of the tests; the others with the long ones."""


@pytest.mark.parametrize(("target", "count"), [("cpp", 12), ("cuda", 23)])
def test_so_many_problems_at_least_have_a_story(target, count):
    assert len([problem for problem, told, _ in STORIES if told == target]) >= count


@EACH
def test_a_story_names_every_answer_in_its_folder_by_number_and_role_and_no_other(problem, target, dtype):
    entries = read_story(problem, target, dtype=dtype).entries
    named = [entry.file for entry in entries]
    assert named == [f"{number:02}-{entry.role}.md" for number, entry in enumerate(entries, start=1)]
    assert files(problem, target, dtype) == sorted(story_folder(problem, target, dtype=dtype).glob("*.md"))


@EACH
def test_every_answer_holds_a_candidate_of_its_own(problem, target, dtype):
    digests = [candidate(path).digest for path in files(problem, target, dtype)]
    assert len(set(digests)) == len(digests)


@EACH
def test_only_a_first_draft_has_no_parent_and_no_answer_is_both_repaired_and_improved(problem, target, dtype):
    entries = read_story(problem, target, dtype=dtype).entries
    assert [entry.parent is None for entry in entries] == [entry.role == "propose" for entry in entries]
    repaired, improved = ({entry.parent for entry in entries if entry.role == role} for role in ("repair", "improve"))
    assert not repaired & improved


@pytest.mark.parametrize("problem", FIRST_FAILURE)
def test_a_story_of_the_demo_has_a_repair_and_an_improvement(problem):
    assert {"propose", "repair", "improve"} <= {entry.role for entry in read_story(problem, "cpp").entries}


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.long) for name in FIRST_FAILURE]
)
def test_the_first_answer_of_a_story_fails_at_its_stage_and_the_last_one_passes(problem):
    with Judge(load_problem(problem, "cpu"), QUICK) as judge:
        first, last = (judge.judge(candidate(files(problem, "cpp")[place])) for place in (0, -1))
    assert isinstance(first, Failed) and first.stage == FIRST_FAILURE[problem], first
    assert isinstance(last, Passed), last


@pytest.mark.long
@pytest.mark.parametrize(
    "problem", [name for name, target, _ in STORIES if target == "cpp" and name not in FIRST_FAILURE]
)
def test_every_answer_of_a_story_outside_the_demo_passes(problem):
    with Judge(load_problem(problem, "cpu"), QUICK) as judge:
        verdicts = [judge.judge(candidate(path)) for path in files(problem, "cpp")]
    assert all(isinstance(verdict, Passed) for verdict in verdicts), verdicts
