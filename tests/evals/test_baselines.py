"""A speedup is shown against the fastest baseline first, and then against the others."""

import csv
import io
import random
import re
from pathlib import Path

import pytest

from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals import tables
from kernelwright.evals.formats.kernelbench import baseline_times
from kernelwright.evals.formats.samples import row_of, write_kept
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.metrics import separate_baselines, summarize
from kernelwright.evals.report import batch_table, scored_words, summary_rows, summary_table
from kernelwright.evals.score import CandidateFile, Scored
from kernelwright.evals.verdict_store import run_summary
from kernelwright.sandbox.verdict.gpu_timing import DeviceRecord
from kernelwright.sandbox.verdict.report import others_of, report, timings, verdict_words
from tests.support.foreign import outcome, tree_problems
from tests.support.foreign import passed as of_tree
from tests.support.runs import Writer, failed, passed, problem, setting
from tests.support.second_verdicts import shown

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
