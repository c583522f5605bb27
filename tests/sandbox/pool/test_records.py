"""What is on record and what is not: like conditions, several kinds, and the order of a batch."""

import json
from pathlib import Path

import pytest

from kernelwright.evals.score import Batch, CandidateFile, Collected, UnjudgedSource, interleaved
from kernelwright.evals.verdict_store import VerdictStore
from kernelwright.problems import Problem
from kernelwright.sandbox.machine import child_limit_bytes, processor_name
from kernelwright.sandbox.pool.executor import Answer, Conditions, ExecutorError, Work, own_cores
from kernelwright.sandbox.pool.judge_pool import Where, as_far_as_there, executor_for, settled
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child import driver
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


BEYOND = 4096
"""No machine of ours has so many cores."""
MANY = tuple(range(BEYOND))


@pytest.mark.parametrize(
    ("choice", "settings"),
    [
        (Where(devices=1), JudgeSettings()),
        (Where(devices=BEYOND), JudgeSettings()),
        (Where(server="unix:/nowhere"), JudgeSettings(cores=MANY)),
    ],
    ids=["all is there", "parts of a processor, which GPUs do not count", "a service, whose own affair it is"],
)
def test_what_has_not_to_change_stays_and_nothing_is_said(capsys, choice, settings):
    assert as_far_as_there(choice, settings) == (choice, settings)
    assert capsys.readouterr().err == ""


def test_on_a_gpu_cores_and_memory_of_another_machine_become_those_of_this_one(capsys):
    began = JudgeSettings(device="cuda", cores=MANY, threads=BEYOND, memory_bytes=2**60)
    choice, settings = as_far_as_there(Where(devices=BEYOND), began)
    assert settings.cores == own_cores() and settings.threads == len(own_cores())
    assert settings.memory_bytes == child_limit_bytes()
    assert choice.devices == (driver.device_count() or BEYOND)
    said = capsys.readouterr().err
    assert f"going on with {len(own_cores())} core" in said and f"the run began with {BEYOND} cores" in said


def test_what_is_measured_on_other_cores_is_not_measured_on_these():
    with pytest.raises(ExecutorError, match=r"lacks \d+ .*new run"):
        as_far_as_there(Where(), JudgeSettings(cores=MANY))


def test_a_run_remembers_the_kind_of_device_that_it_began_on_unless_it_judges_in_its_own_process():
    assert settled(Where(devices=1), JudgeSettings()).kind == processor_name()
    assert settled(Where(), JudgeSettings()) == Where()


def test_an_address_without_ray_and_more_devices_than_cores_are_mistakes():
    with pytest.raises(ExecutorError, match="--executor ray"):
        executor_for(Where(address="head:6379"), JudgeSettings())
    with pytest.raises(ExecutorError, match="100000 devices"):
        settled(Where(devices=100_000), JudgeSettings())
