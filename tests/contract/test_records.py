"""Records of an earlier release open through the commands, with the figures that stand in `data/records.toml`."""

import gzip
import hashlib
import json
import tomllib

import pytest

from bench.results.records import Searched
from kernelwright.evals.scores.judgements import Judgements
from kernelwright.sandbox.service.job_store import JobStore
from kernelwright.sandbox.verdict.judge_version import judged_by
from kernelwright.sandbox.verdict.verdicts import Passed
from tests.contract.outputs import RECORDS, prepared, said
from tests.contract.recorded import DATA

FIGURES = tomllib.loads((DATA / "records.toml").read_text())
DIGEST_LENGTH = 16
"""Of the digest that stands in older records in the place of a judge version."""


@pytest.fixture
def place(tmp_path):
    return prepared(tmp_path)


def answer(place, words):
    return json.loads(said(place, [*words.split(), "--json"]))


def outcome(verdict):
    return "passed" if isinstance(verdict, Passed) else verdict.stage


def test_a_run_is_shown_ranked_and_replayed(place):
    figures = FIGURES["run"]
    problem = answer(place, "resume run")
    assert problem["best_attempt"] == figures["best"]
    assert problem["speedup"] == pytest.approx(figures["speedup_confirmed"])
    (board,) = answer(place, "leaderboard run")["boards"]
    (cell,) = board["rows"][0]["cells"]
    assert cell["published"]["speedup"] == pytest.approx(figures["speedup_verified"])
    assert cell["stale"], "its judge has another version"
    replayed = answer(place, "replay run")
    assert (replayed["same"], replayed["events"]) == (True, figures["events"])
    said(place, ["inspect", "run", "--export", "report.html"])
    assert (place / "report.html").stat().st_size > 10_000


def test_a_resumed_run_that_is_finished_stays_as_it_was(place):
    before = hashlib.sha256((place / "run/header.json").read_bytes()).hexdigest()
    said(place, ["resume", "run"])
    assert hashlib.sha256((place / "run/header.json").read_bytes()).hexdigest() == before
    assert answer(place, "replay run")["events"] == FIGURES["run"]["events"]


def test_a_verdict_is_recomputed_from_its_samples(place):
    assert answer(place, "judge --recheck passed.json") == {"agrees": True, "differences": {}}


def test_scores_are_read_with_the_judge_that_they_have(place):
    found = Judgements.read(place / "scored/scores/scores.db")
    names = {one.candidate.partition("/")[2].removesuffix(".py"): one for one in found}
    assert {name: outcome(one.verdict) for name, one in names.items()} == FIGURES["scores"]["outcomes"]
    right = names["right"]
    assert right.verdict.measurement.speedup == pytest.approx(FIGURES["scores"]["total"]["right"])
    assert len(right.conditions.judge_version) == DIGEST_LENGTH
    assert judged_by(right.verdict.evidence.versions) == right.conditions.judge_version


def test_jobs_of_a_service_are_there_with_their_verdicts(place):
    store = JobStore(place / "jobs/jobs.db", 10)
    try:
        reports = {id: store.get(id).report for id in FIGURES["jobs"]}
    finally:
        store.close()
    assert {id: one.get("stage") or one["outcome"] for id, one in reports.items()} == FIGURES["jobs"]


def test_a_line_of_the_results_is_read():
    with gzip.open(RECORDS / "results.jsonl.gz", "rt") as lines:
        found = [Searched.model_validate_json(line) for line in lines]
    assert found and all(one.attempts[0].attempt.verdict is not None for one in found)
