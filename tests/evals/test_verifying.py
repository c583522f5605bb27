from pathlib import Path

import pytest

from kernelwright.evals.leaderboard import boards
from kernelwright.evals.score import Verifier
from kernelwright.evals.verdict_store import VERIFIED, run_summary
from kernelwright.problems import load_problem
from kernelwright.sandbox.machine import processor_name
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.runs import passed, setting, writing

pytestmark = pytest.mark.slow


def run_with(folder, model, source, speedup):
    """A run whose record claims that speedup for a source, on this machine."""
    (folder / "cumsum.py").write_text(PROBLEM)
    wanted = load_problem(str(folder / "cumsum.py"))
    with writing(folder / model, of=wanted, chosen=setting(device=processor_name(), model=model)) as writer:
        writer.attempt(passed(speedup, spread=0.0), source=source)
        writer.stop()
    return run_summary(folder / model)


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """A board on which a wrong kernel claimed the first place and a right one the second, after verifying one row."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [run_with(folder, "liar", WRONG, 50.0), run_with(folder, "honest", RIGHT, 9.0)]
    judged = []
    verifier = Verifier(processor_name(), lambda cell, again: judged.append(cell.run))
    (board,) = verifier.verify_top(runs, 1)
    return folder, runs, board, judged


def test_a_kernel_that_is_wrong_after_all_falls_and_the_published_number_is_the_second_one(verified):
    _, _, board, judged = verified
    status = {row.model: row.cells[0].status for row in board.rows}
    assert judged == ["liar", "honest"]
    assert status == {"liar": "quarantined", "honest": "verified"}
    _, _, board, _ = verified
    cell = next(row.cells[0] for row in board.rows if row.model == "honest")
    assert cell.claimed.speedup == pytest.approx(9.0)
    assert cell.published.speedup < 3


def test_a_verification_is_kept_and_used_by_the_next_leaderboard(verified):
    folder, runs, board, _ = verified
    assert (folder / "honest" / VERIFIED).exists()
    again = boards(runs, str(JUDGE_VERSION), Verifier("", lambda *_: None).lookup)
    statuses = {row.model: row.cells[0].status for row in again[0].rows}
    assert statuses == {row.model: row.cells[0].status for row in board.rows}


def test_the_log_of_the_run_is_left_as_it_was(verified):
    _, runs, _, _ = verified
    assert [run_summary(Path(run.folder)).problems for run in runs] == [run.problems for run in runs]
