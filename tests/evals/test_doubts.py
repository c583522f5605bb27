"""A speedup is never shown without the doubts about it."""

import pytest

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.cli import app
from kernelwright.commands.judge import words
from kernelwright.evals.formats.flashinfer import trace_of
from kernelwright.evals.formats.kernelbench import eval_results
from kernelwright.evals.formats.samples import outcomes_of, row_of, write_kept
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.plots import picture
from kernelwright.evals.report import Progress, attempt_words, summary_rows, summary_table
from kernelwright.evals.verdict_store import run_summary
from kernelwright.integrations.reward import reward
from kernelwright.prompts import TargetVersions, render
from kernelwright.sandbox.verdict.report import DOUBTS, report
from tests.support.foreign import outcome, trace_problem, tree_problems
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
    (found,) = outcomes_of(log.folder)
    model = RunModel(log)
    live = Progress(("one",))
    live.take_over("one", [*log.events("one")])
    texts = [
        shown(summary_table([view])), shown(live._table()), attempt_words(view.best, best=True).plain,
        picture(log.header, model.views),
        model.index()["problems"][0]["attempts"][0]["marks"], words(report(view.best.ruling)),
        *filter(None, model.index()["problems"][0]["said"].values()),
    ]  # fmt: skip
    assert all(MARKS[kind] in text and "[4.00, 4.00]" in text for text in texts)
    for folder in (write_best(log, "one"), write_kept(tmp_path / "kept", found)):
        said = DOUBTS.get(kind, "older clock")
        assert said.lower() in (folder / "README.md").read_text().lower()
    clock = view.best.ruling.measurement.timing_clock
    for row in (*summary_rows([view], log.folder), row_of(found)):
        assert (row["timing_clock"], row["speedup_any"]) == (clock, pytest.approx(4.0))


def test_the_next_prompt_says_why_in_its_history_and_its_evidence(log, kind):
    view = fold("one", log.events("one"))
    ask = view.best.ask.model_copy(update={"attempt": 2, "role": "improve", "parent": 1})
    brief = BriefMaker(device=CPU, versions=TargetVersions(), texts=log)(log.problem("one"), view, ask)
    assert DOUBTS.get(kind, "") in brief.history[0].detail and DOUBTS.get(kind, "") in brief.parent.evidence
    text = render(brief).text
    if kind in DOUBTS:  # no factor by itself, and no time to improve on
        assert text.count("4.00x") == text.count(f" [4.00, 4.00], {MARKS[kind]}") == 2
        assert brief.best_ms is None
    else:
        assert MARKS[kind] not in text and brief.best_ms == pytest.approx(1, rel=0.1)


def test_results_of_other_benchmarks_say_it_too(tmp_path, kind):
    verdict = doubted(4.0, kind)
    log = trace_of(outcome(trace_problem(tmp_path / "trace"), verdict)).evaluation["log"]
    assert MARKS[kind] in log and "[4.00, 4.00]" in log
    (result,) = eval_results([outcome(tree_problems(tmp_path / "tree")["level1/1"], verdict)])["1"]
    said = result.metadata["kernelwright"]
    assert {"speedup_low", "speedup_high"} < set(said) and kind in (said["comparison"], said["timing_clock"])


@pytest.mark.parametrize("speedup", [0.5, 4.0])
@pytest.mark.parametrize("doubt", ["too_noisy", "unconfirmed", "confirmed"])
def test_reward_and_board_count_a_doubt_alike(tmp_path, doubt, speedup):
    verdict = doubted(speedup, doubt)
    board = boards([run_summary(ended(tmp_path / "run", verdict))], "h1")[0].rows[0]
    is_sure = doubt == "confirmed" or (speedup < 1 and doubt == "unconfirmed")
    counts = speedup if is_sure else min(1.0, speedup)
    low = report(verdict)["speedup_low"]
    assert board.geometric_mean.value == pytest.approx(counts, rel=0.02)
    assert board.score == pytest.approx(max(1.0, min(low, counts)))
    assert board.fast["best"][1.0] == (reward(report(verdict)).value > 0.3) == (counts > 1)


def test_two_runs_side_by_side_say_it_of_each(tmp_path, kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folders = [str(ended(tmp_path / name, doubted(4.0, kind))) for name in "ab"]
    app(["diff", *folders], standalone_mode=False)
    assert capsys.readouterr().out.count(f"[4.00, 4.00], {MARKS[kind]}") == 2


@pytest.mark.parametrize("doubt", ["too_noisy", "unconfirmed"])
def test_any_candidate_that_is_faster_without_a_doubt_is_preferred(tmp_path, doubt):
    verdicts = doubted(4.0, doubt), doubted(6.0, doubt), passed(1.1, spread=0.0), passed(0.9, spread=0.0)
    with RunLog.open(ended(tmp_path / "run", *verdicts)) as log:
        view = fold("one", log.events("one"))
    assert [attempt.number for attempt in view.ranked] == [3, 2, 1, 4]


def test_judge_prints_the_three_times_of_both_sides_and_the_remedy_of_a_launch_bound_call():
    told = words(report(doubted(2.0, "confirmed"))).splitlines()
    for name, candidate, baseline in (("GPU time", 1, 2), ("call latency", 1.5, 9), ("host time", 1.2, 8)):
        assert f"{name}: candidate {candidate} ms, eager {baseline} ms" in told
    assert any("CUDA graph" in line for line in told)
    assert not any("latency" in line or "CUDA graph" in line for line in words(report(passed(2.0))).splitlines())


def test_less_accurate_baselines_are_marked_and_what_no_program_of_pytorch_beats_stands_beside():
    verdict = passed(4.0, spread=0.0, compiled=0.5)
    less = verdict.measurement.model_copy(update={"less_accurate": ("torch.compile default",)})
    told = words(report(verdict.model_copy(update={"measurement": less}))).splitlines()[0]
    assert told.startswith("passed: 4.00 x") and "(less accurate) 0.50 x" in told and "against any 0.50 x" in told
