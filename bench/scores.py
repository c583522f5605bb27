"""2,000 candidates that were all judged before, scored again, beside a command that does nothing.

Their verdicts are made up and stored under today's conditions; the command reads, compares and reports every file.
"""

import random
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.comparison import Comparison, in_turn
from kernelwright.evals.scores.judgements import Judgement, Judgements
from kernelwright.evals.scores.scoring import DATABASE, source_digest
from kernelwright.problems import load_problem
from kernelwright.sandbox.pool.executor import Conditions, local_devices
from kernelwright.sandbox.verdict.settings import Settings
from tests.support.runs import REFERENCE, failed, passed, source_of

PROBLEMS, CANDIDATES = 20, 100
ROUNDS = 3
LIMIT_MS = 20_000


def run() -> Comparison:
    """`kernelwright --help` against `kernelwright score` with nothing left to judge."""
    with tempfile.TemporaryDirectory() as place:
        _lay_out(Path(place))
        again = ["score", f"{place}/problems", f"{place}/candidates", "--out", f"{place}/scores", "--json"]
        plain, ours = in_turn(lambda: _call("--help"), lambda: _call(*again), ROUNDS)
    return Comparison(("kernelwright --help", "2,000 judged files again"), tuple(plain), tuple(ours), LIMIT_MS)


def _lay_out(place: Path) -> None:
    rng = random.Random(0)
    settings = Settings()
    conditions = Conditions.here(local_devices(settings, None)[0].kind, settings.model_dump(mode="json"))
    (place / "problems").mkdir()
    with Judgements(place / "scores" / DATABASE) as store:
        for number in range(PROBLEMS):
            path = place / "problems" / f"p{number}.py"
            path.write_text(REFERENCE)
            problem = load_problem(str(path))
            folder = place / "candidates" / problem.name
            folder.mkdir(parents=True)
            for index in range(CANDIDATES):
                source = source_of(index, rng)
                (folder / f"c{index}.py").write_text(source)
                store.add(
                    Judgement(
                        problem=problem.name,
                        problem_digest=problem.digest,
                        candidate=f"c{index}",
                        candidate_digest=source_digest(source),
                        conditions=conditions,
                        time=datetime.now(UTC),
                        verdict=passed(1.5, rng) if index % 2 else failed(),
                    )
                )


def _call(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *words], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0 or (words[0] == "score" and done.stdout.count("\n") != PROBLEMS * CANDIDATES):
        raise RuntimeError(done.stderr)
