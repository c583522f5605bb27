"""What a program hands in to be judged: in which forms, and the one sentence for each thing that can be wrong."""

import asyncio
from pathlib import Path

import pytest

from kernelwright import Candidate, Judge, JudgePool, JudgeSettings, Problem, judge, judge_many, load_problem
from kernelwright.sandbox.authenticity.scan import (
    candidate_given,
    checked_pairs,
    checked_problems,
    checked_source,
    is_file_name,
    problem_of,
)
from tests.support.problems import PROBLEM, RIGHT

LOADER = "from torch.utils.cpp_extension import load_inline\nmodule = load_inline('m', '', cuda_sources='x')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the program runs in, with a problem and a candidate."""
    (tmp_path / "rowsum.py").write_text(PROBLEM)
    (tmp_path / "cand.py").write_text(RIGHT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", [str, Path, load_problem])
def test_a_problem_is_given_as_text_as_a_path_and_as_itself(folder, form):
    assert problem_of(form("rowsum.py")) == load_problem("rowsum.py")


@pytest.mark.parametrize("form", [str, lambda text: Candidate(source=text)])
def test_a_source_is_given_as_text_and_as_a_candidate(form):
    assert candidate_given(form(RIGHT)) == Candidate(source=RIGHT)


def test_a_candidate_that_names_no_language_is_in_that_of_its_text():
    assert candidate_given(Candidate(source=LOADER)).language == "cuda"
    assert candidate_given(Candidate(source=LOADER, language="python")).language == "python"


def test_text_that_can_not_be_sent_is_replaced():
    assert candidate_given("x = '\ud800'").source == "x = '?'"


def right_pairs(count):
    return [("rowsum.py", RIGHT)] * count


PAIRS = {
    "a pair without its list": (("rowsum.py", RIGHT), "pairs[0] is 'rowsum.py'; give (problem, source)"),
    "a name of two letters": (["ab"], "pairs[0] is 'ab'; give (problem, source)"),
    "three things": ([*right_pairs(3), ("a", "b", "c")], "pairs[3] is ('a', 'b', 'c'); give (problem, source)"),
    "none at all": (None, "pairs is None; give a list"),
    "a text": ("rowsum.py", "pairs is 'rowsum.py'; give a list"),
    "a number as problem": ([(3, RIGHT)], "the problem of pairs[0] is 3; give a catalog name, a path or a Problem"),
    "a path as source": (
        [*right_pairs(1), ("rowsum.py", Path("cand.py"))],
        "the source of pairs[1] is PosixPath('cand.py'), the path of a file; give the text that is in it",
    ),
    "a path as the source's text": (
        [("rowsum.py", "cand.py")],
        "the source of pairs[0] is 'cand.py', the path of a file; give the text that is in it",
    ),
    "bytes as source": (
        [("rowsum.py", b"x")],
        "the source of pairs[0] is b'x'; give the text of a candidate, or a Candidate",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_no_pair_is_told_with_its_position_before_anything_is_judged(folder, name):
    given, said = PAIRS[name]
    for told in (checked_pairs, judge_many, first_of_all):
        with pytest.raises(ValueError) as caught:
            told(given)
        assert str(caught.value) == said


def first_of_all(pairs):
    """The first result, asked for without a process that could judge it."""

    async def first():
        return await anext(JudgePool().judge_many(pairs))

    return asyncio.run(first())


def test_one_verdict_is_asked_for_in_the_same_forms(folder):
    async def asked(source):
        return await JudgePool().judge("rowsum.py", source)

    problem = load_problem("rowsum.py")
    for told in (lambda source: asyncio.run(asked(source)), lambda source: judge(problem, source)):
        with pytest.raises(ValueError, match=r"source.* 'cand\.py'.* text"):
            told("cand.py")
    with pytest.raises(ValueError, match="problem is 3; "):
        judge(3, RIGHT)


def test_a_sentence_stays_short(folder):
    with pytest.raises(ValueError, match=r"^pairs\[0\] is .{1,80}; ") as caught:
        checked_pairs([[RIGHT * 100]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["none.py", "", "cand.py\n", "cand.py\nclass ModelNew: pass", "cand.py\0.py"])
def test_what_names_no_file_is_a_source_right_or_wrong(folder, source):
    assert checked_source(source) == source


def test_a_file_that_is_named_like_a_candidate_s_text_does_not_hinder_it(folder):
    text = "class ModelNew: own = x.py"
    (folder / text).touch()
    assert not is_file_name(text)
    assert checked_source(text) == text


def test_a_candidate_is_taken_as_it_is(folder):
    assert checked_source(Candidate(source="cand.py")) == Candidate(source="cand.py")


def test_problems_come_in_a_list(folder):
    one = load_problem("rowsum.py")
    assert checked_problems([Path("rowsum.py"), "rms_norm", one]) == ["rowsum.py", "rms_norm", one]
    for wrong in ("rms_norm", Path("rowsum.py"), one):
        with pytest.raises(ValueError, match=r"^problems .* list$"):
            checked_problems(wrong)
    with pytest.raises(ValueError, match=r"^problems\[1\] is None"):
        checked_problems(["rms_norm", None])


@pytest.mark.slow
def test_names_and_texts_are_judged_by_all_that_judges(folder):
    settings = JudgeSettings(device="cpu", effort="screen", threads=1)
    pairs = []
    for form in (str, Path, load_problem):
        pairs += [(form("rowsum.py"), "no candidate"), (form("rowsum.py"), Candidate(source="no candidate"))]
        with Judge(form("rowsum.py"), settings) as judging:
            assert isinstance(judging.problem, Problem)
            assert judging.judge("no candidate").stage == "scan"
    assert [judge(*pair).stage for pair in pairs] == ["scan"] * 6
    assert [one.report["stage"] for one in judge_many(pairs, settings=settings)] == ["scan"] * 6
