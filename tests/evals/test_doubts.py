"""A speedup is shown against the fastest baseline first, and never without the doubts about it."""

import csv
import io
import random
import re
from pathlib import Path

import pytest

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.cli import app
from kernelwright.commands.judge import words
from kernelwright.evals import tables
from kernelwright.evals.formats.flashinfer import trace_of
from kernelwright.evals.formats.kernelbench import baseline_times, eval_results
from kernelwright.evals.formats.samples import outcomes_of, row_of, write_kept
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.metrics import separate_baselines, summarize
from kernelwright.evals.plots import picture
from kernelwright.evals.report import Progress, attempt_words, batch_table, scored_words, summary_rows, summary_table
from kernelwright.evals.score import CandidateFile, Scored
from kernelwright.evals.verdict_store import run_summary
from kernelwright.integrations.reward import reward
from kernelwright.prompts import TargetVersions, render
from kernelwright.sandbox.verdict.gpu_timing import DeviceRecord
from kernelwright.sandbox.verdict.report import DOUBTS, others_of, report, timings, verdict_words
from tests.support.foreign import outcome, trace_problem, tree_problems
from tests.support.foreign import passed as of_tree
from tests.support.runs import Writer, doubted, ended, failed, passed, problem, setting
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


ALONE = passed(2.0, spread=0.0)
SEVERAL = passed(4.0, spread=0.0, compiled=1.5, shipped=2.0)
ORDER = re.compile(r"shipped 2\.00 x, eager 4\.00 x(;|$)", re.MULTILINE)


@pytest.fixture
def run(tmp_path):
    """A run whose best kernels were measured against several baselines, and against eager alone."""
    with RunLog.create(tmp_path / "run", [problem("one"), problem("two")], setting()) as log:
        for name, verdict in (("one", SEVERAL), ("two", ALONE)):
            writer = Writer(log, name, random.Random(0))
            writer.attempt(verdict)
            writer.stop()
    return tmp_path / "run"


def views(run):
    with RunLog.open(run) as log:
        return [fold(name, log.events(name)) for name in ("one", "two")]


def test_the_others_are_told_behind_the_fastest_and_none_where_there_is_but_one():
    assert ORDER.search(others_of(SEVERAL.measurement))
    assert others_of(ALONE.measurement) == ""
    told = verdict_words(SEVERAL)
    assert told.startswith("passed, 1.50 x") and "faster" in told and ORDER.search(told)
    assert "against eager" not in verdict_words(ALONE)
    assert "torch.compile default: 1.50 " in timings(SEVERAL)
    assert "shipped 2.00, eager 4.00" in timings(SEVERAL)
    assert "other baselines" not in timings(ALONE)


def test_the_table_of_a_run_tells_the_others_only_where_there_are_some(run):
    told = shown(summary_table(views(run)))
    assert "against the fastest" in told and "1.50 x [1.50, 1.50]" in told
    assert "shipped 2.00 x, eager 4.00 x" in told
    assert "best speedup [95 %]" in shown(summary_table(views(run)[1:]))


def test_the_rows_of_a_run_have_each_baseline(run):
    first, second = summary_rows(views(run), run)
    keys = ("speedup", "against", "speedup_eager", "speedup_shipped", "speedup_compiled")
    assert [first[key] for key in keys] == [1.5, "torch.compile default", 4.0, 2.0, 1.5]
    assert [second[key] for key in keys] == [2.0, "eager", 2.0, 2.0, None]


def test_a_board_has_a_column_for_each_baseline(run):
    (board,) = boards([run_summary(run)], "h1")
    (row,) = board.rows
    assert {name: row.fast[name][2.0] for name in row.fast} == {"best": 0, "eager": 0.5, "shipped": 0, "compile": 0}
    cells = dict(zip(tables.ROW_COLUMNS, tables.row_texts(row, board), strict=True))
    assert [cells[f"fast_1{of}"] for of in ("", " eager", " as shipped", " compile")] == ["100 %"] * 3 + ["50 %"]


def test_each_number_of_a_board_is_told_against_each_baseline(run):
    (board,) = boards([run_summary(run)], "h1")
    one, two = (dict(zip(tables.CELL_COLUMNS, tables.cell_texts(cell), strict=True)) for cell in board.rows[0].cells)
    names = ("against", "over eager", "as shipped", "compile")
    assert [one[name] for name in names] == ["torch.compile default", "4.00", "2.00", "1.50"]
    assert [two[name] for name in names] == ["eager", "2.00", "2.00", "-"]
    first, second = csv.DictReader(io.StringIO(tables.as_csv([board])))
    assert (first["speedup_eager"], first["speedup_shipped"], first["speedup_compiled"]) == ("4.0", "2.0", "1.5")
    assert second["speedup_compiled"] == ""


def scored(*verdicts):
    return [
        Scored(CandidateFile("one", f"one/{n}.py", Path(f"{n}.py")), report(verdict), summarize(verdict), cached=False)
        for n, verdict in enumerate(verdicts)
    ]  # fmt: skip


def test_a_batch_has_a_row_for_each_baseline_that_was_measured_apart_and_its_lines_tell_the_others():
    told = shown(batch_table(scored(SEVERAL, failed()), {"one": problem("one")}))
    rows = [line.strip().partition("  ")[0] for line in told.splitlines() if line.strip().startswith("against")]
    assert rows == ["against eager", "against eager as shipped", "against torch.compile"]
    assert "against" not in shown(batch_table(scored(ALONE), {"one": problem("one")}))
    (line,) = scored(SEVERAL)
    assert scored_words(line).startswith("passed, 1.50 x") and ORDER.search(scored_words(line))


def test_eager_as_shipped_has_a_row_only_where_it_differs_from_eager():
    compiled = summarize(passed(2.0, compiled=1.5))
    assert separate_baselines([compiled]) == ["eager", "compile"]
    assert separate_baselines([summarize(SEVERAL)]) == ["eager", "shipped", "compile"]
    assert separate_baselines([summarize(ALONE), summarize(failed())]) == []


def test_a_device_that_was_not_asked_says_nothing_of_eager_as_shipped():
    device = DeviceRecord(device="d", architecture="a", driver="1", switches={}, bound_ms={}, device_ms={})
    older = ALONE.model_copy(update={"measurement": ALONE.measurement.model_copy(update={"on_device": device})})
    assert summarize(older).against("shipped") is None and summarize(ALONE).against("shipped") == 2.0


def test_the_inspector_has_each_baseline(run):
    with RunLog.open(run) as log:
        model = RunModel(log)
        one, two = (entry["speedups"] for entry in model.index()["problems"])
        detail = model.detail("one", 1)
    assert one == {"best": 1.5, "against": "torch.compile default", "eager": 4.0, "shipped": 2.0, "compile": 1.5}
    assert two == {"best": 2.0, "against": "eager", "eager": 2.0, "shipped": 2.0, "compile": None}
    assert detail["against"] == "torch.compile default"
    assert list(detail["speedups"]) == ["torch.compile default", "eager as shipped", "eager"]


def test_an_export_tells_the_fastest_first(tmp_path):
    asked = next(iter(tree_problems(tmp_path / "tree").values()))
    folder = write_kept(tmp_path / "kept", outcome(asked, of_tree()))
    text = (folder / "README.md").read_text()
    assert "speedup against torch.compile default: 2.00 (95 % interval 2.00 to 2.00" in text and "eager 4.00" in text
    row = row_of(outcome(asked, of_tree()))
    assert row["against"] == "torch.compile default"
    assert [row[f"speedup_{name}"] for name in ("eager", "shipped", "compiled")] == [4, 4, 2]


def test_baseline_files_of_kernelbench_keep_eager_as_shipped_apart(tmp_path):
    asked = next(iter(tree_problems(tmp_path / "tree").values()))
    names = {"eager", "eager as shipped", "torch.compile default"}
    several = zip(SEVERAL.measurement.pairings, sorted(names), strict=True)
    pairings = tuple(one.model_copy(update={"baseline": name}) for one, name in several)
    verdict = SEVERAL.model_copy(update={"measurement": SEVERAL.measurement.model_copy(update={"pairings": pairings})})
    assert set(baseline_times([outcome(asked, verdict)])) == {
        "baseline_time_torch", "baseline_time_torch_as_shipped", "baseline_time_torch_compile_inductor_default",
    }  # fmt: skip
