"""Judging the best kernels a second time: who keeps the best of many noisy measurements reports too high a number.

The second judging has new processes, new seeds and twice the pairs, and its number is the one that is published. The
verdicts lie in `verified.db` in the run's folder, append-only; the run's own log is left as it is.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.evals.boards.leaderboard import Board, Cell, Verified, boards
from kernelwright.evals.figures import measured
from kernelwright.evals.runs.facts import RunFacts
from kernelwright.evals.scores.judgements import Judgement, Judgements
from kernelwright.evals.scores.score_log import log_of
from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgingEffort, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate

VERIFIED = "verified.db"
UNSETTLED = ("unverified", "provisional")
MORE = 2
"""How many times the pairs of a search's judging a verification takes."""


class Verifier:
    def __init__(
        self, device: str, on_verified: Callable[[Cell, Judgement], None], effort: JudgingEffort = "rank"
    ) -> None:
        self.device = device
        """What this machine judges on; kernels of other devices are left as they are."""
        self.on_verified = on_verified
        self.effort = effort
        self._found: dict[str, dict[tuple[str, str], Judgement]] = {}

    def lookup(self, folder: str, problem_digest: str, candidate_digest: str) -> Verified | None:
        """The latest verification of a kernel; one of the current judge version before any other."""
        if folder not in self._found:
            path = Path(folder) / VERIFIED
            known = Judgements.read(path) if path.exists() else []
            known.sort(key=lambda one: (one.conditions.judge_version == str(JUDGE_VERSION), one.time))
            self._found[folder] = {(one.problem_digest, one.candidate_digest): one for one in known}
        found = self._found[folder].get((problem_digest, candidate_digest))
        if found is None:
            return None
        record = f"{VERIFIED} {found.key[:12]}"
        return Verified(measured(found.verdict), found.conditions.judge_version, record)

    def verify_top(self, runs: Sequence[RunFacts], count: int) -> list[Board]:
        """Judge again until the `count` best rows of this device's board rest on numbers of the current judge version.

        A row may fall when its numbers are taken again, and the next one comes up; so it goes on until nothing moves.
        Each kernel is judged once.
        """
        tried: set[tuple[str, str]] = set()
        while True:
            found = boards(runs, str(JUDGE_VERSION), self.lookup, self.effort)
            rows = [row for board in found if board.device == self.device for row in board.rows[:count]]
            best = [cell for row in rows for cell in row.cells if cell.run]
            unsettled = [cell for cell in best if cell.status in UNSETTLED or cell.stale]
            cells = [cell for cell in unsettled if _kernel(cell) not in tried]
            if not cells:
                return found
            for cell in cells:
                if _kernel(cell) not in tried:
                    tried.add(_kernel(cell))
                    self._verify(cell)

    def _verify(self, cell: Cell) -> None:
        from kernelwright.sandbox.machine.identity import needs_device

        folder = Path(str(cell.folder))
        with log_of(folder) as log:
            problem = log.problem(cell.problem)
            candidate = candidate_of(log.text(str(cell.candidate_digest)))
            settings = _settings(log.header.config)
        if "device" not in settings.model_fields_set:
            device = "cuda" if needs_device(candidate.language, problem.size) else "cpu"
            settings = settings.on(device)
        judgement = judged_here(problem, candidate, settings, self.device, f"{cell.run} attempt {cell.attempt}")
        with Judgements(folder / VERIFIED) as store:
            store.add(judgement)
        self._found.pop(str(cell.folder), None)
        self.on_verified(cell, judgement)


def judged_here(problem: Problem, candidate: Candidate, settings: Settings, device: str, named: str) -> Judgement:
    """A candidate judged on this machine's `device`, as a record; `named` is where it came from."""
    from kernelwright.sandbox.judge.judging import judge

    return Judgement(
        problem=problem.name,
        problem_digest=problem.digest,
        candidate=named,
        candidate_digest=candidate.digest,
        conditions=Conditions.here(device, settings.model_dump(mode="json")),
        time=datetime.now(UTC),
        verdict=judge(problem, candidate, settings),
    )


def _kernel(cell: Cell) -> tuple[str, str]:
    return cell.problem_digest, str(cell.candidate_digest)


def _settings(config: dict[str, Any]) -> Settings:
    """The judge's settings of the run, in full and with more pairs; the defaults where they cannot be read any more."""
    try:
        settings = Settings.model_validate(config.get("judging") or {})
    except ValidationError:
        settings = Settings()
    more = {name: MORE * getattr(settings, name) for name in ("min_pairs", "max_pairs", "time_budget_s")}
    return settings.at("rank").model_copy(update=more)
