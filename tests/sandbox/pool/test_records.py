"""What is on record and what is not: like conditions, several kinds, and the order of a batch."""

import json
from pathlib import Path

import pytest

from kernelwright.evals.score import Batch, CandidateFile, Collected, UnjudgedSource, interleaved
from kernelwright.evals.verdict_store import VerdictStore
from kernelwright.problems import Problem
from kernelwright.sandbox.pool.executor import Answer, Conditions, ExecutorError, Work
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from tests.support.runs import failed, judgement, passed

PROBLEM = Problem(name="one", title="", family="f", size="cpu", source="p")


def conditions(device="d", cores=(0,), **more):
    return Conditions.here(device, {"cores": list(cores)} | more)


def under(name, found, verdict):
    one = judgement(name, verdict)
    return one.model_copy(update={"conditions": found, "problem_digest": PROBLEM.digest})


@pytest.fixture
def store(tmp_path):
    with VerdictStore(tmp_path / "scores.db") as store:
        yield store


def test_a_verdict_of_other_cores_counts_and_one_of_more_cores_does_not(store):
    store.add(under("a", conditions(cores=(0, 1)), passed(1.5)))
    assert store.known_like(PROBLEM.digest, "a", [conditions(cores=(2, 3))]) is not None
    assert store.known_like(PROBLEM.digest, "a", [conditions(cores=(0, 1, 2))]) is None


@pytest.mark.parametrize("other", [conditions("other"), conditions(min_pairs=4)])
def test_a_verdict_of_another_kind_or_effort_does_not_count(store, other):
    store.add(under("a", conditions(), passed(1.5)))
    assert store.known_like(PROBLEM.digest, "a", [other]) is None


def test_of_several_verdicts_the_latest_is_told(store):
    store.add(under("a", conditions(cores=(0,)), failed()))
    store.add(under("a", conditions(cores=(1,)), passed(1.5)))
    assert store.known_like(PROBLEM.digest, "a", [conditions(cores=(2,))])[1].passed


@pytest.fixture
def told(store, tmp_path):
    """What a batch says of one file without judging, for a kind."""
    (tmp_path / "a.py").write_text("source")
    file = CandidateFile("one", "a.py", tmp_path / "a.py")
    digest = "41cf6794ba4200b839c53531555f0f3998df4cbb01a4d5cb0b94e3ca5e23947d"

    def tell(kind, *kinds):
        for device in kinds:
            store.add(under(digest, conditions(device), failed()))
        said = []
        Batch(store, said.append).report_known(Collected({"one": PROBLEM}, {}), [file], kind)
        return said

    return tell


@pytest.mark.parametrize(
    ("kind", "kinds", "outcome"),
    [(None, ["small"], "failed"), (None, [], "not_judged"), ("big", ["small", "big"], "failed")],
    ids=["on record", "not on record", "of the kind that was asked for"],
)
def test_without_judging_what_is_on_record_is_told(told, kind, kinds, outcome):
    assert [one.report["outcome"] for one in told(kind, *kinds)] == [outcome]


def test_records_of_two_kinds_are_not_mixed(told):
    with pytest.raises(ExecutorError, match=r"2 kinds.*--kind"):
        told(None, "small", "big")


def order(counts, at_once):
    names = [(name, f"{name}{number}") for name, count in counts.items() for number in range(count)]
    waiting = [UnjudgedSource([CandidateFile(name, file, Path(name))], "") for name, file in names]
    return [one.files[0].name for one in interleaved(waiting, at_once)]


def test_one_device_takes_one_problem_after_the_other_and_many_take_them_in_turn_some_at_a_time():
    assert order({"a": 3, "b": 2}, 1) == ["a0", "a1", "a2", "b0", "b1"]
    assert order({"a": 2, "b": 1, "c": 2}, 2) == ["a0", "b0", "a1", "c0", "c1"]


def test_conditions_name_the_judge_version_and_without_cores_are_like_themselves_alone():
    assert conditions().judge_version == str(JUDGE_VERSION)
    assert Conditions.here("d", {}).alike != conditions().alike
    assert json.loads(conditions().alike)[1] == "d"


def test_what_failed_before_anybody_looked_at_the_problem_comes_back_from_a_worker_whole():
    verdict = failed()
    verdict = verdict.model_copy(update={"evidence": verdict.evidence.model_copy(update={"problem_status": None})})
    told = Answer(verdict=verdict).model_dump(mode="json", exclude_none=True)  # as a worker tells it
    assert Answer.model_validate(told) == Answer(verdict=verdict)


def test_a_job_that_an_earlier_version_stored_is_read():
    stored = {"problem": PROBLEM.model_dump(), "candidate": {"source": "x"}, "beat": 2.0, "asks": {"effort": "search"}}
    assert (Work.model_validate(stored).best_speedup, Work.model_validate(stored).overrides) == (
        2.0,
        {"effort": "search"},
    )
