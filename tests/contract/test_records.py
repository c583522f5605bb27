import json
import tomllib

import pytest

from bench.results.records import Searched, read_lines
from kernelwright.evals.verdict_store import VerdictStore
from kernelwright.sandbox.verdict.judge_version import judged_by
from tests.contract import outputs, recorded
from tests.support.service import listening

FIGURES = tomllib.loads((recorded.DATA / "records.toml").read_text(encoding="utf-8"))
LARGEST_BYTES = 300_000
JOBS = {"efe1b5b7b18038f3c9f214d8c057ed0e": ("done", "passed"), "a8a2596712d0a395807ab8efbeef3402": ("done", "failed")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return outputs.prepared(tmp_path_factory.mktemp("records"))


def looked_up(value, path):
    for part in path.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return value


@pytest.mark.parametrize("words", FIGURES)
def test_an_old_record_yields_its_figures(place, words):
    value = json.loads(outputs.said(place, [*words.split(), "--json"]))
    assert {path: looked_up(value, path) for path in FIGURES[words]} == FIGURES[words]


def test_an_old_run_becomes_a_page(place):
    outputs.said(place, ["inspect", "run", "--export", "run.html"])
    page = (place / "run.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(page) > 50_000


def test_an_old_run_and_old_scores_are_exported(place):
    of_run = outputs.said(place, ["export", "run", "-"])
    scored = ["--problems", "scored/tasks", "--candidates", "scored/candidates"]
    of_scores = outputs.said(place, ["export", "scored/scores", "-", *scored])
    assert len(of_run.splitlines()) == 3
    assert sorted(json.loads(line)["outcome"] for line in of_scores.splitlines()) == ["failed", "passed"]


def test_old_jobs_of_a_service_are_told_by_a_new_one(place):
    with listening(place / "jobs") as running:
        told = [running.client().ask("GET", f"/v1/jobs/{id}").body for id in JOBS]
    assert {one["id"]: (one["state"], one["report"]["outcome"]) for one in told} == JOBS


def test_the_records_are_small():
    assert sum(path.stat().st_size for path in outputs.RECORDS.iterdir()) < LARGEST_BYTES


def test_old_scores_keep_the_digest_of_their_judge(place):
    found = VerdictStore.read(place / "scored/scores/scores.db")
    assert len(found) == 2
    for one in found:
        assert len(one.conditions.judge_version) == len("4be86e80f895e1d9")
        assert judged_by(one.verdict.evidence.versions) == one.conditions.judge_version


def test_a_line_of_the_results_is_read():
    found = list(read_lines(outputs.RECORDS / "results.jsonl.gz", Searched.model_validate_json))
    assert found and all(one.attempts[0].attempt.verdict is not None for one in found)
