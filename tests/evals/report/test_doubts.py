"""Wherever a speedup is shown, what keeps it from being taken at its word stands beside it."""

import pytest

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.commands.judging.judge import words
from kernelwright.evals.formats.folders import row_of, write_kept
from kernelwright.evals.formats.samples import run_outcomes
from kernelwright.evals.inspector.export import picture
from kernelwright.evals.inspector.model import RunModel
from kernelwright.evals.report import attempt_words, summary_rows, summary_table
from kernelwright.prompts import TargetVersions
from kernelwright.sandbox.verdict.in_words import DOUBTS
from kernelwright.sandbox.verdict.report import report
from tests.support.runs import doubted, ended, passed
from tests.support.search import CPU
from tests.support.second_verdicts import shown

MARKS = {"too_noisy": "too noisy", "unconfirmed": "unconfirmed", "events": "older clock"}


@pytest.fixture(params=MARKS)
def kind(request):
    return request.param


@pytest.fixture
def log(tmp_path, kind):
    with RunLog.open(ended(tmp_path / "run", doubted(4.0, kind))) as log:
        yield log


def test_each_table_and_file_marks_it(log, kind, tmp_path):
    view = fold("one", log.events("one"))
    (outcome,) = run_outcomes(log.folder)
    model = RunModel(log)
    texts = [
        shown(summary_table([view])), attempt_words(view.best, best=True).plain, picture(model),
        model.index()["problems"][0]["attempts"][0]["marks"], words(report(view.best.ruling)),
    ]  # fmt: skip
    assert all(MARKS[kind] in text for text in texts)
    for folder in (write_best(log, "one"), write_kept(tmp_path / "kept", outcome)):
        said = DOUBTS.get(kind) or ("older clock" if folder.parent.name == "best" else "clock `events`")
        assert said.lower() in (folder / "README.md").read_text().lower()
    clock = view.best.ruling.measurement.timing_clock
    for row in (*summary_rows([view], log.folder), row_of(outcome)):
        assert (row["timing_clock"], row["speedup_any"]) == (clock, pytest.approx(4.0))


def test_the_next_prompt_says_why_in_its_history_and_its_evidence(log, kind):
    view = fold("one", log.events("one"))
    ask = view.best.ask.model_copy(update={"attempt": 2, "role": "improve", "parent": 1})
    brief = BriefMaker(device=CPU, versions=TargetVersions(), texts=log)(log.problem("one"), view, ask)
    assert DOUBTS.get(kind, "") in brief.history[0].detail and DOUBTS.get(kind, "") in brief.parent.evidence


@pytest.mark.parametrize("doubt", ["too_noisy", "unconfirmed"])
def test_any_candidate_that_is_faster_without_a_doubt_is_preferred(tmp_path, doubt):
    verdicts = doubted(4.0, doubt), doubted(6.0, doubt), passed(1.1, spread=0.0), passed(0.9, spread=0.0)
    with RunLog.open(ended(tmp_path / "run", *verdicts)) as log:
        view = fold("one", log.events("one"))
    assert [attempt.number for attempt in view.ranked] == [3, 2, 1, 4]


def test_judge_prints_the_three_times_of_both_sides_and_the_remedy_of_a_launch_bound_call():
    told = words(report(doubted(2.0, "confirmed"))).splitlines()
    for key, candidate, baseline in (("gpu_time", 1, 2), ("call_latency", 1.5, 9), ("host_time", 1.2, 8)):
        assert f"{key}_ms: candidate {candidate}, eager {baseline}" in told
    assert any("CUDA graph" in line for line in told)
    assert not any("_ms: " in line or "CUDA graph" in line for line in words(report(passed(2.0))).splitlines())


def test_less_accurate_baselines_are_marked_and_what_no_program_of_pytorch_beats_stands_beside():
    verdict = passed(4.0, spread=0.0, compiled=0.5)
    less = verdict.measurement.model_copy(update={"less_accurate": ("torch.compile default",)})
    told = words(report(verdict.model_copy(update={"measurement": less}))).splitlines()[0]
    assert told.startswith("passed: 4.00 x") and "(less accurate) 0.50 x" in told and "against any 0.50 x" in told
