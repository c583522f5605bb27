"""A leaderboard over 100,000 attempts, beside doing nothing.

Ten runs of a hundred problems with a hundred attempts each. A run keeps what a leaderboard asks beside its log when it
ends (`evals.verdict_store`); that is what is timed. How long it takes without, from the logs alone, is printed first.
"""

import tempfile
import time
from pathlib import Path

from bench.comparison import Comparison, in_turn
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.verdict_store import summaries
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from tests.support.runs import made_run

RUNS, PROBLEMS, ATTEMPTS = 10, 100, 100
ROUNDS = 10
LIMIT_MS = 2000


def run() -> Comparison:
    """Nothing against a leaderboard."""
    with tempfile.TemporaryDirectory() as place:
        for seed in range(RUNS):
            made_run(Path(place) / f"run{seed}", PROBLEMS, ATTEMPTS, seed=seed, model=f"model-{seed % 4}")
        start = time.perf_counter()
        _board(place)
        print(f"  from the logs alone: {1e3 * (time.perf_counter() - start):.0f} ms")
        plain, ours = in_turn(lambda: None, lambda: _board(place), ROUNDS)
    return Comparison(("nothing", "a leaderboard of 100,000 attempts"), tuple(plain), tuple(ours), LIMIT_MS)


def _board(place: str) -> None:
    (board,) = boards(summaries([Path(place)]), str(JUDGE_VERSION))
    attempts = sum(cell.attempts for row in board.rows for cell in row.cells)
    assert attempts == RUNS * PROBLEMS * ATTEMPTS, attempts
