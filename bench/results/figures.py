"""Figures of the page, from the index alone, by the metrics of `evals`. Pure."""

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bench.results.records import Index, Kept, Trial
from kernelwright.evals import metrics
from kernelwright.evals.leaderboard import Board, LeaderboardCell, boards
from kernelwright.evals.leaderboard import Row as BoardRow
from kernelwright.evals.metrics import Estimate, Result
from kernelwright.evals.verdict_store import JudgedKernel


class DtypeBoard(NamedTuple):
    """The board of one dtype with its only entrant, and the rows of the index that its cells are of."""

    dtype: str
    board: Board
    row: BoardRow
    kept: tuple[Kept, ...]
    """Those of which an answer was judged, or none will be."""

    @property
    def ranked(self) -> list[tuple[Kept, LeaderboardCell]]:
        """Those that count: weak problems are shown and not ranked."""
        weak = set(self.board.weak)
        return [(kept, cell) for kept, cell in self.pairs if cell.problem not in weak]

    @property
    def pairs(self) -> list[tuple[Kept, LeaderboardCell]]:
        """Every row with its cell, in the order of the index. Until a search ends, what it measured itself counts."""
        cells = {cell.problem_digest: cell for cell in self.row.cells}
        found = [(kept, cells[kept.facts.digest]) for kept in self.kept]
        return [(kept, _as_measured(cell) if kept.stopped is None else cell) for kept, cell in found]

    def results(self) -> dict[str, list[Result]]:
        """By baseline that a kernel was measured against, the samples that count; those against the fastest always."""
        known = dict.fromkeys(("best", *self.row.fast))
        return {name: [cell.result(name) for _, cell in self.ranked] for name in known}

    @property
    def levels(self) -> list[str]:
        return list(dict.fromkeys(level_of(kept) for kept in self.kept))


def _as_measured(cell: LeaderboardCell) -> LeaderboardCell:
    return cell.model_copy(update={"status": "unverified"}) if cell.status == "provisional" else cell


def level_of(kept: Kept) -> str:
    """`level1`, from the address."""
    return kept.address.partition("/")[0]


def dtype_boards(index: Index) -> list[DtypeBoard]:
    """One for each dtype, as `kernelwright leaderboard` has it; what a later judge refused is in quarantine."""
    refused = {}
    for row in index.rows:
        if (best := row.facts.best) and (again := row.again) and again.refused:
            refused[row.facts.digest, best.candidate_digest] = JudgedKernel(
                attempt="",
                record="again",
                candidate_digest=best.candidate_digest,
                judge_version=again.judge_version,
                measured=again.measured,
            )
    found = []
    begun = [row for row in index.rows if row.is_begun]
    for dtype in dict.fromkeys(row.dtype for row in begun):
        kept = tuple(row for row in begun if row.dtype == dtype)
        facts = [index.run_summary(row) for row in kept]
        version = str(facts[0].judge_version)
        (board,) = boards(facts, version, lambda _, problem, kernel: refused.get((problem, kernel)))
        found.append(DtypeBoard(dtype, board, board.rows[0], kept))
    return found


class LevelFigures(NamedTuple):
    problems: int
    right: int
    faster: float
    """The share of all problems whose kernel the judge calls `faster`."""
    at_the_wall: int
    """Problems that leave a kernel nothing to gain, by the selection."""
    faster_below: float | None
    """The share judged `faster` of the others; None where there are none."""
    faster_than_any: tuple[float, float | None]
    """The share that is faster than every baseline, of all and of those not at the wall."""
    median: float | None
    """Of the speedups of correct kernels against the fastest baseline at equal accuracy."""
    mean: Estimate | None
    """Their geometric mean."""
    with_failures: float
    """The geometric mean over all problems, a failure as 1."""
    with_losses: float
    """The same, and a slower kernel as 1 too: PyTorch goes on being used."""
    against_any: float
    """The geometric mean over all problems against the fastest of all baselines, less accurate ones too; a failure as
    1."""
    fast_2: float
    fast_1: dict[str, float]
    """By baseline."""
    of_floor: float | None
    """Geometric mean of the share that the roofline's time is of the kernel's, where known and at most 1."""
    below_floor: int
    """Kernels that take less, by needing fewer operations than the roofline counts: it says nothing about these."""
    of_copy: float | None
    """Geometric mean of the share that a copy's time is of the kernel's, where it was measured."""


def level_figures(
    pairs: Sequence[tuple[Kept, LeaderboardCell]], baselines: Sequence[str], wall: Collection[str] = ()
) -> LevelFigures:
    """Failures stay in the denominator of the shares. `wall`: addresses of problems at the wall."""
    results = {name: [cell.result(name) for _, cell in pairs] for name in baselines}
    speedups = [one.speedup for one in results["best"] if one.speedup is not None]
    everywhere = [1.0 if one.speedup is None else one.speedup for one in results["best"]]
    any_baseline = [_against_any(cell) for _, cell in pairs]
    shares = [share for _, cell in pairs if (share := floor_share(cell)) is not None]
    above = [share for share in shares if share <= 1]
    below = [(kept, cell) for kept, cell in pairs if kept.address not in wall]
    copies = [share for kept, cell in pairs if (share := copy_share(kept, cell)) is not None]
    return LevelFigures(
        problems=len(pairs),
        right=len(speedups),
        faster=_faster(pairs),
        at_the_wall=len(pairs) - len(below),
        faster_below=_faster(below) if below else None,
        faster_than_any=(_faster_than_any(pairs), _faster_than_any(below) if below else None),
        median=statistics.median(speedups) if speedups else None,
        mean=metrics.geometric_mean(speedups) if speedups else None,
        with_failures=metrics.geometric_mean(everywhere).value,
        with_losses=metrics.geometric_mean([max(1.0, one) for one in everywhere]).value,
        against_any=metrics.geometric_mean(any_baseline).value,
        fast_2=metrics.fast_p(results["best"], 2.0),
        fast_1={name: metrics.fast_p(found, 1.0) for name, found in results.items() if found},
        of_floor=metrics.geometric_mean(above).value if above else None,
        below_floor=len(shares) - len(above),
        of_copy=metrics.geometric_mean(copies).value if copies else None,
    )


def _faster(pairs: Sequence[tuple[Kept, LeaderboardCell]]) -> float:
    return sum(is_faster(cell) for _, cell in pairs) / len(pairs)


def _faster_than_any(pairs: Sequence[tuple[Kept, LeaderboardCell]]) -> float:
    return sum(is_faster(cell) and kept.faster_than_any for kept, cell in pairs) / len(pairs)


def _against_any(cell: LeaderboardCell) -> float:
    counted, found = cell.result().speedup, cell.published
    if counted is None or found is None or found.speedup is None:
        return 1.0
    return counted * (found.speedup if found.speedup_any is None else found.speedup_any) / found.speedup


def copy_share(kept: Kept, cell: LeaderboardCell) -> float | None:
    """Return a copy's time over the kernel's; None where it is not known, or in doubt, or nothing counts."""
    return _share_of_time(cell, kept.copy_ms)


def is_faster(cell: LeaderboardCell) -> bool:
    """Return whether it counts, and the judge calls it faster."""
    return cell.result().speedup is not None and cell.published is not None and cell.published.comparison == "faster"


def floor_share(cell: LeaderboardCell) -> float | None:
    """Return the roofline's time over the kernel's; None where it is not known, or in doubt, or nothing counts."""
    return _share_of_time(cell, cell.published and cell.published.floor_ms)


def _share_of_time(cell: LeaderboardCell, least_ms: float | None) -> float | None:
    if cell.counted is None or not cell.is_beyond_doubt or not least_ms or not cell.counted.candidate_ms:
        return None
    return metrics.roofline_fraction(cell.counted.candidate_ms, least_ms)


class After(NamedTuple):
    """All problems after a number of answers each."""

    answers: int
    right: float
    fast_1: float
    mean: float
    """Geometric mean over all problems of the best so far, 1 where there is none: PyTorch goes on being used."""


def after_each_answer(standing: DtypeBoard) -> list[After]:
    """Sum up the first answer alone, the first two, and so on, as far as every search has come."""
    tries = [kept.answers for kept, _ in standing.ranked]
    most = max(map(len, tries), default=0)
    waiting = [len(kept.answers) for kept, _ in standing.ranked if kept.stopped is None]
    return [_after([made[:count] for made in tries], count) for count in range(1, min([most, *waiting]) + 1)]


def _after(tries: Sequence[Sequence[Trial]], count: int) -> After:
    results = []
    for made in tries:
        right = [trial for trial in made if trial.standing is not None]
        best = max(right, key=lambda trial: trial.standing or 0.0, default=None)
        found = best.speedup if best else None
        if found is not None and best and best.standing != found:  # too noisy, or not confirmed
            found = min(1.0, found)
        results.append(Result(problem="", family="", compiled=bool(right), speedup=found))
    gains = [max(1.0, one.speedup or 1.0) for one in results]
    shares = metrics.fast_curve(results, (0.0, 1.0))
    return After(count, shares[0.0], shares[1.0], metrics.geometric_mean(gains).value)


class Round(NamedTuple):
    """One round of a dtype: how many of its problems were asked, have an answer, and a verdict on it."""

    dtype: str
    number: int
    asked: int
    answered: int
    judged: int


def rounds(rows: Sequence[Kept]) -> list[Round]:
    """By dtype, the first answer of each problem, the second, and so on."""
    found = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        counted = [[trial for trial in row.tries if trial.counts] for row in rows if row.dtype == dtype]
        for number in range(1, max(map(len, counted), default=0) + 1):
            trials = [tries[number - 1] for tries in counted if len(tries) >= number]
            answered = sum(trial.outcome != "not answered yet" for trial in trials)
            found.append(Round(dtype, number, len(trials), answered, sum(not trial.is_open for trial in trials)))
    return found


class RoleFigures(NamedTuple):
    """Outcomes of the answers to one kind of request."""

    asked: int
    right: int
    faster: int | None
    """Right, and faster than the correct kernel that they started from; None where none started from one."""
    gain: float | None
    """Median over correct improvements of their speedup over that of their parent."""


def by_role(rows: Sequence[Kept]) -> dict[str, RoleFigures]:
    """In the order in which roles first come."""
    found: dict[str, list[tuple[Trial, float | None]]] = {}
    for row in rows:
        speedups = {trial.number: trial.speedup for trial in row.tries}
        for trial in (trial for trial in row.tries if not trial.is_open):
            found.setdefault(trial.role, []).append((trial, speedups.get(trial.parent or 0)))
    return {role: _role(trials) for role, trials in found.items()}


def _role(trials: Sequence[tuple[Trial, float | None]]) -> RoleFigures:
    right = [(trial.speedup, parent) for trial, parent in trials if trial.speedup is not None]
    gains = [speedup / parent for speedup, parent in right if parent]
    improving = any(parent for _, parent in trials)
    faster = sum(gain > 1 for gain in gains) if improving else None
    return RoleFigures(len(trials), len(right), faster, statistics.median(gains) if gains else None)


class IdeaFigures(NamedTuple):
    """Outcomes of one idea of the bank, over all problems."""

    tried: int
    won: int
    gain: float | None
    """Median over its correct improvements of their speedup over that of their parent."""


def by_idea(rows: Sequence[Kept]) -> dict[str, IdeaFigures]:
    """Return the ideas by gain, those that improved nothing last. Tried and won are counted as by the search."""
    tried: Counter[str] = Counter()
    won: Counter[str] = Counter()
    gains: dict[str, list[float]] = {}
    for row in rows:
        for idea, (times, wins) in row.ideas.items():
            tried[idea] += times
            won[idea] += wins
        speedups = {trial.number: trial.speedup for trial in row.tries}
        for trial in row.tries:
            before = speedups.get(trial.parent or 0)
            if trial.role == "improve" and trial.speedup and before:
                gains.setdefault(trial.idea, []).append(trial.speedup / before)
    middle = {idea: statistics.median(found) for idea, found in gains.items()}
    order = sorted(tried, key=lambda idea: (-middle.get(idea, 0.0), -won[idea], -tried[idea], idea))
    return {idea: IdeaFigures(tried[idea], won[idea], middle.get(idea)) for idea in order}


def second_apart(rows: Sequence[Kept]) -> list[float]:
    """Return by how much the second speedup of each row lies from its first, as a share of that."""
    pairs = [
        (row.facts.best.measured.speedup, row.again.measured.speedup) for row in rows if row.facts.best and row.again
    ]
    return [abs(second / first - 1) for first, second in pairs if first and second]


def failures(rows: Sequence[Kept]) -> dict[str, list[tuple[Kept, Trial]]]:
    """By outcome, every answer that came to nothing; the most frequent outcome first."""
    found: dict[str, list[tuple[Kept, Trial]]] = {}
    for row in rows:
        for trial in row.answers:
            if trial.outcome != "passed":
                found.setdefault(trial.outcome, []).append((row, trial))
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))
