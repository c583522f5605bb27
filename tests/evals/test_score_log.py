"""The folder of a score is read like a run: on a board, in the inspector, and as a record to compute again."""

import sqlite3

import pytest

from kernelwright.agent.log.events import RunLogError
from kernelwright.evals.inspector.live import LiveRuns
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.metrics import COPY
from kernelwright.evals.tables import CELL_COLUMNS, FORMATS, ROW_COLUMNS
from kernelwright.evals.verdict_store import log_of, run_summary, summaries
from tests.support.runs import REFERENCE, ended, failed, passed, problem, scored

VERDICTS = failed("build"), passed(1.5), passed(3.0), failed("check")


def test_the_facts_of_a_score_are_those_of_a_run_with_the_same_verdicts_but_for_cost(tmp_path):
    (score,) = summaries([scored(tmp_path / "a", *VERDICTS)])
    (ours,), (theirs,) = score.problems, run_summary(ended(tmp_path / "b", *VERDICTS)).problems
    unknown = {"cost_usd", "tokens", "first_correct", "to_best", "best"}
    assert ours.model_dump(exclude=unknown) == theirs.model_dump(exclude=unknown)
    assert (ours.best.attempt, ours.best.measured) == (theirs.best.attempt, theirs.best.measured)
    assert (ours.cost_usd, ours.to_best.attempts) == (None, theirs.to_best.attempts)


def test_a_folder_of_runs_and_scores_is_one_board_in_every_format(tmp_path):
    scored(tmp_path / "all/mine", passed(2.0))
    ended(tmp_path / "all/run", passed(1.5))
    (board,) = found = boards(summaries([tmp_path / "all"]), "h1")
    assert [(row.model, row.cost_usd) for row in board.rows] == [("mine", None), ("model-a", 0.01)]
    assert all("mine" in write(found) for write in FORMATS.values())


def test_what_was_judged_with_most_effort_counts_and_each_device_has_a_board(tmp_path):
    for verdict, device in ((passed(2.0), "a"), (passed(4.0, effort="screen"), "a"), (passed(3.0), "b")):
        scored(tmp_path / "mine", verdict, source="x = 1", device=device)
    found = {facts.device: facts.problems[0] for facts in summaries([tmp_path / "mine"])}
    assert {device: round(one.best.measured.speedup) for device, one in found.items()} == {"a": 2, "b": 3}
    assert [one.attempts for one in found.values()] == [1, 1]


def test_verdicts_of_a_release_that_kept_no_sources_are_told_and_not_lost(tmp_path):
    folder = scored(tmp_path / "mine", passed(2.0))
    with sqlite3.connect(folder / "scores.db") as store:
        store.execute("DROP TABLE texts")
    with pytest.raises(RunLogError, match="source was kept"):
        list(summaries([folder]))
    scored(folder, passed(2.0))
    assert [facts.problems[0].passed for facts in summaries([folder])] == [1]


def test_the_inspector_shows_each_candidate_with_verdict_and_source_and_what_came_since(tmp_path):
    runs = LiveRuns([scored(tmp_path / "mine", failed("check"))])
    before, first = runs.last_event("mine"), runs.model("mine").detail("one", 1)
    scored(tmp_path / "mine", failed("check"), passed(2.0))
    assert runs.last_event("mine") > before
    second = runs.model("mine").detail("one", 2)
    assert (first["outcome"], second["outcome"], second["how"]) == ("failed", "passed", "the file one/2.py")
    assert "attempt 2" in second["source"]
    runs.close()


def test_a_board_counts_kernels_of_one_s_own_and_marks_a_copy_of_the_reference(tmp_path):
    copy = REFERENCE.replace("class Model(", "class ModelNew(")
    for name, label, source in (("a", "mixed", copy), ("b", "library_only", "x = 1"), ("c", "library_only", copy)):
        scored(tmp_path / "mine", passed(2.0, label=label), of=problem(name), source=source)
    (board,) = boards(summaries([tmp_path / "mine"]), "h1")
    assert ROW_COLUMNS["own kernels"](board.rows[0], board) == f"{board.rows[0].own_kernels}/3" == "1/3"
    with log_of(tmp_path / "mine") as log:
        shown = [one["attempts"][0]["auth"] for one in RunModel(log).index()["problems"]]
    assert shown == [CELL_COLUMNS["kernel"](cell) for cell in board.rows[0].cells] == ["mixed", "library_only", COPY]
