import csv
import json

import pytest

from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.store import RunLog
from tests.support.runs import made_run
from tests.support.second_verdicts import write_run

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path):
    """Runs `runs/a` and `runs/b` of two models over the same problems."""
    made_run(tmp_path / "runs/a", problems=2, attempts=12, seed=1)
    made_run(tmp_path / "runs/b", problems=2, attempts=12, seed=2, model="model-b")
    return tmp_path


def done(kernelwright, *words):
    found = kernelwright(*words)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_leaderboard_is_a_table_and_as_json_names_run_attempt_and_record(kernelwright, runs):
    out = done(kernelwright, "leaderboard", "runs")
    assert "model-a" in out and "model-b" in out and "Example CPU" in out
    (board,) = json.loads(done(kernelwright, "leaderboard", "runs", "--json"))["boards"]
    cells = [cell for row in board["rows"] for cell in row["cells"]]
    assert len(cells) == 4
    assert all(cell["run"] and cell["attempt"] and cell["record"] for cell in cells if cell["published"])


def test_a_metric_of_one_s_own_is_a_column(kernelwright, runs):
    (runs / "mine.py").write_text("def tries(cells):\n    return sum(cell.attempts for cell in cells)\n")
    (board,) = json.loads(done(kernelwright, "leaderboard", "runs", "--metric", "mine.py:tries", "--json"))["boards"]
    assert [row["own"] for row in board["rows"]] == [{"tries": 24.0}] * 2


@pytest.mark.parametrize("ending", ["md", "html", "csv", "json"])
def test_the_ending_of_a_file_gives_its_format(kernelwright, runs, ending):
    done(kernelwright, "leaderboard", "runs/a", "runs/b", "--out", f"board.{ending}")
    text = (runs / f"board.{ending}").read_text()
    assert "model-b" in text
    if ending == "csv":
        assert len(list(csv.DictReader(text.splitlines()))) == 4


def test_show_is_a_tree(kernelwright, runs):
    out = done(kernelwright, "show", "runs/a")
    assert out.count("problem_") == 2 and "propose" in out and " *" in out


def test_show_gives_a_candidate_that_can_be_judged_and_a_reference_also_as_json(kernelwright, runs):
    index = json.loads(done(kernelwright, "show", "runs/a", "--json"))
    number = index["problems"][0]["best"]
    assert "class ModelNew" in done(kernelwright, "show", "runs/a", f"problem_0/{number}")
    assert "class Model(" in done(kernelwright, "show", "runs/a", "problem_0/reference")
    found = json.loads(done(kernelwright, "show", "runs/a", "problem_0/reference", "--json"))
    assert found["problem"] == "problem_0" and "class Model(" in found["source"]


def test_two_runs_are_compared(kernelwright, runs):
    assert "sign test p =" in done(kernelwright, "diff", "runs/a", "runs/b")
    found = json.loads(done(kernelwright, "diff", "runs/a", "runs/b", "--json"))
    assert [pair["problem"] for pair in found["pairs"]] == ["problem_0", "problem_1"]


def test_two_candidates_are_compared_line_by_line(kernelwright, runs):
    (runs / "own.py").write_text("x = 1\n")
    out = done(kernelwright, "diff", "runs/a:problem_0/reference", "own.py")
    assert "+x = 1" in out and "-import torch" in out


def test_inspect_writes_one_file(kernelwright, runs):
    out = done(kernelwright, "inspect", "runs/a", "--export", "report.html")
    assert "needs no network" in out
    assert (runs / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("untold", [False, True])
def test_an_exported_best_kernel_is_the_kept_one_byte_for_byte(kernelwright, tmp_path, untold):
    run = write_run(tmp_path / "run", untold=untold)
    done(kernelwright, "export", "run", "--best", "out")
    with RunLog.open(run) as log:
        kept = [folder for name in log.header.problems if (folder := write_best(log, name))]
    exported = {path.parent.name: path.read_bytes() for path in (tmp_path / "out").glob("*/candidate.py")}
    assert exported == {folder.name: (folder / "candidate.py").read_bytes() for folder in kept} and len(kept) == 2
