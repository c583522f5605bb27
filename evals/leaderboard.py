"""Boards from runs and scores alone: who found how fast kernels on how many problems. Pure; reads and writes nothing.

A board holds one device, for times of two devices are not compared; of several clocks the newest counts. A row is one
entrant (model, strategy, target) with all its runs; a cell is its best kernel for one problem. Ranked by the geometric
mean of what is credited for each problem: the lower end of the speedup's interval, 1 where there is no gain or no right
kernel (`metrics.credited`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from kernelwright.agent.strategies import function_in
from kernelwright.evals import metrics
from kernelwright.evals.metrics import BASELINES, COPY, OWN_KERNEL, Effort, Estimate, Measured, Result, measured
from kernelwright.evals.verdict_store import Judgement, Judgements, Kernel, ProblemFacts, RunFacts, log_of
from kernelwright.problems import Problem
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.pool.protocol import Conditions
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.report import counted_speedup
from kernelwright.sandbox.verdict.settings import AT_EFFORT, JudgingEffort, Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, TimingClock

Status = Literal["verified", "unverified", "provisional", "weak problem", "quarantined", "unsolved"]
"""`provisional`: measured with less effort than the board takes, or by an older clock than others of it. So it is shown
and counts for nothing."""


class Cell(Record):
    """An entrant's best kernel for one problem, or that it has none; run, attempt and record say whence it comes."""

    problem: str
    problem_digest: str
    family: str
    level: str | None
    status: Status
    why: str = ""
    """For a weak problem, a provisional number or a kernel in quarantine."""
    stale: bool = False
    """The published number was reached under another judge version: judge it again."""
    attempts: int
    passed: int
    compiled: bool
    run: str | None = None
    folder: str | None = None
    attempt: str | None = None
    record: str | None = None
    candidate_digest: str | None = None
    published: Measured | None = None
    """The number that counts: of the verification where there is one, else of the search."""
    claimed: Measured | None = None
    first_correct: Effort | None = None
    to_best: Effort | None = None

    @property
    def counted(self) -> Measured | None:
        """What is published, where it counts: a kernel in quarantine is a failure."""
        return self.published if self.status in ("verified", "unverified") else None

    @property
    def credit(self) -> float:
        found = self.counted
        low = found.low if found else None
        return metrics.credited(None if found is None or low is None else counted_speedup(low, found.comparison))

    @property
    def is_beyond_doubt(self) -> bool:
        return self.counted is not None and not self.counted.is_doubtful

    def result(self, baseline: str = "best") -> Result:
        """The sample that the metrics count."""
        speedup = self.counted.counting(baseline) if self.counted else None
        return Result(
            problem=self.problem, family=self.family, level=self.level, compiled=self.compiled, speedup=speedup
        )


class Group(Record):
    problems: int
    correct: int
    compile_rate: float
    fast: dict[float, float]
    """fast_p against the fastest baseline."""
    geometric_mean: Estimate | None
    first_correct: Effort | None
    """Attempts and cost to the first right kernel, summed over the problems that have one."""
    to_best: Effort | None


def grouped_by(cells: Sequence[Cell], key: Callable[[Cell], str | None]) -> dict[str, Group]:
    """The groups by name, in alphabetical order; cells without a name are in none."""
    names = sorted({name for cell in cells if (name := key(cell)) is not None})
    return {name: _group([cell for cell in cells if key(cell) == name]) for name in names}


def _group(cells: Sequence[Cell]) -> Group:
    results = [cell.result() for cell in cells]
    speedups = [result.speedup for result in results if result.speedup is not None]
    return Group(
        problems=len(cells),
        correct=len(speedups),
        compile_rate=metrics.compile_rate(results),
        fast=metrics.fast_curve(results),
        geometric_mean=metrics.geometric_mean(speedups) if speedups else None,
        first_correct=_total([cell.first_correct for cell in cells if cell.first_correct]),
        to_best=_total([cell.to_best for cell in cells if cell.to_best]),
    )


def _total(efforts: Sequence[Effort]) -> Effort | None:
    if not efforts:
        return None
    cost = metrics.total_cost([effort.cost_usd for effort in efforts])
    return Effort(attempts=sum(effort.attempts for effort in efforts), cost_usd=cost)


PASS_AT = (1, 5, 10)
CLOCKS = ("gpu_time", "call", "events", "bound", None)
"""Of several on one board the first counts, see `Measurement.timing_clock`."""


class Verified(NamedTuple):
    measured: Measured
    judge_version: str
    record: str


class Row(Record):
    rank: int
    model: str
    strategy: str
    target: str
    runs: tuple[str, ...]
    cells: tuple[Cell, ...]
    score: float
    """Geometric mean of the credits over the problems that are ranked."""
    correct: int
    """Ranked problems with a right kernel."""
    own_kernels: int = 0
    """Ranked problems whose best kernel computes with one of its own; a library's, PyTorch's and a copy do not."""
    fast: dict[str, dict[float, float]]
    """fast_p by baseline: `best` (the fastest of all), `eager`, `shipped` (eager as shipped), `compile` (best mode).

    One that no kernel was measured against is left out.
    """
    geometric_mean: Estimate | None
    """Of the speedups of right kernels alone."""
    pass_at: dict[int, float | None]
    """Mean over the problems; None where a problem has fewer attempts than k."""
    roofline: float | None
    """Geometric mean of the roofline fractions that are known, of times without a doubt."""
    speed_of_light: float | None
    attempts_to_correct: float | None
    cost_usd: float | None
    families: dict[str, Group]
    levels: dict[str, Group]
    verified: int
    stale: int
    own: dict[str, float | None] = Field(default_factory=dict)
    """Metrics of the user's own, by name; None where one has no value."""


class Board(Record):
    device: str
    problems: tuple[str, ...]
    weak: tuple[str, ...]
    """Problems that are shown and not ranked, since a verdict on them says little."""
    rows: tuple[Row, ...]

    def ranked(self, row: Row) -> tuple[Cell, ...]:
        return tuple(cell for cell in row.cells if cell.problem not in self.weak)


Verifications = Callable[[str, str, str], Verified | None]
"""Looks up the verification of a kernel: folder of the run, problem digest, candidate digest."""


def boards(
    runs: Iterable[RunFacts],
    judge_version: str,
    verifications: Verifications = lambda folder, problem_digest, candidate_digest: None,
    effort: JudgingEffort = "rank",
) -> list[Board]:
    """A board for each device, in the order of their names. Numbers of another `judge_version` are stale.

    `effort`: the least with which a number that counts was measured.
    """
    by_device: dict[str, list[RunFacts]] = {}
    for run in runs:
        by_device.setdefault(run.device, []).append(run)
    maker = _Maker(judge_version, verifications, effort)
    return [maker.board(device, group) for device, group in sorted(by_device.items())]


class _Entry(NamedTuple):
    run: RunFacts
    facts: ProblemFacts


class _Maker:
    def __init__(self, judge_version: str, verifications: Verifications, effort: JudgingEffort) -> None:
        self.judge_version = judge_version
        self.effort = effort
        self.verifications = verifications

    def board(self, device: str, runs: Sequence[RunFacts]) -> Board:
        problems: dict[str, ProblemFacts] = {}
        entrants: dict[tuple[str, str, str], list[RunFacts]] = {}
        for run in runs:
            entrants.setdefault((run.model, run.strategy, run.target), []).append(run)
            for facts in run.problems:
                problems.setdefault(facts.digest, facts)
        order = sorted(problems.values(), key=lambda facts: (facts.level or "", facts.family, facts.problem))
        kernels = ((run, facts, facts.best) for run in runs for facts in run.problems if facts.best is not None)
        known = {self._published(*kernel)[0].timing_clock for kernel in kernels}
        clock = next(one for one in CLOCKS if one in known or one is None)
        cells = {entrant: [self._cell(facts, group, clock) for facts in order] for entrant, group in entrants.items()}
        weak = {cell.problem_digest for row in cells.values() for cell in row if cell.status == "weak problem"}
        rows = [_row(entrant, entrants[entrant], row, weak) for entrant, row in cells.items()]
        rows.sort(key=lambda row: (-row.score, -row.correct, row.model, row.strategy, row.target))
        return Board(
            device=device,
            problems=tuple(facts.problem for facts in order),
            weak=tuple(facts.problem for facts in order if facts.digest in weak),
            rows=tuple(row.model_copy(update={"rank": rank}) for rank, row in enumerate(rows, start=1)),
        )

    def _published(self, run: RunFacts, facts: ProblemFacts, best: Kernel) -> tuple[Measured, Verified | None]:
        again = self.verifications(run.folder, facts.digest, best.candidate_digest)
        label = best.measured.authenticity
        if again and label == COPY:
            again = again._replace(measured=again.measured.model_copy(update={"authenticity": label}))
        return again.measured if again else best.measured, again

    def _cell(self, asked: ProblemFacts, runs: Sequence[RunFacts], clock: TimingClock | None) -> Cell:
        entries = [_Entry(run, facts) for run in runs for facts in run.problems if facts.digest == asked.digest]
        cell = Cell(
            problem=asked.problem,
            problem_digest=asked.digest,
            family=asked.family,
            level=asked.level,
            status="unsolved",
            attempts=sum(entry.facts.attempts for entry in entries),
            passed=sum(entry.facts.passed for entry in entries),
            compiled=any(entry.facts.compiled for entry in entries),
        )
        solved = [self._solved(cell, one, one.facts.best, clock) for one in entries if one.facts.best is not None]
        return max(solved, key=lambda one: (one.credit, one.published.low or 0 if one.published else 0), default=cell)

    def _solved(self, cell: Cell, entry: _Entry, best: Kernel, clock: TimingClock | None) -> Cell:
        published, again = self._published(entry.run, entry.facts, best)
        status, why = _status(best.measured, again, self.effort, clock)
        return cell.model_copy(
            update={
                "status": status,
                "why": why,
                "stale": (again.judge_version if again else best.judge_version) != self.judge_version,
                "run": entry.run.run,
                "folder": entry.run.folder,
                "attempt": best.attempt,
                "record": f"{best.record}; {again.record}" if again else best.record,
                "candidate_digest": best.candidate_digest,
                "published": published,
                "claimed": best.measured,
                "first_correct": entry.facts.first_correct,
                "to_best": entry.facts.to_best,
            }
        )


def _status(
    claimed: Measured, again: Verified | None, least: JudgingEffort, clock: TimingClock | None
) -> tuple[Status, str]:
    counted = again.measured if again else claimed
    weak = counted.weak if counted.weak is not None else claimed.weak
    if not counted.passed:
        return "quarantined", f"judged again, it failed at {counted.stage}"
    if counted.without:
        return "quarantined", f"judged with defences off: {', '.join(counted.without)}"
    if counted.is_impossible:
        times = f"{counted.candidate_ms:.3g} ms, where {counted.impossible_below_ms:.3g} ms is the least possible"
        return "quarantined", f"it takes {times}"
    if weak:
        return "weak problem", "; ".join(weak)
    efforts = list(AT_EFFORT)
    if efforts.index(counted.effort) < efforts.index(least):
        return "provisional", f"measured at effort {counted.effort}: enough to choose, not to be ranked"
    if counted.accuracy != "ieee":
        return "provisional", f"judged at accuracy {counted.accuracy}, and others here at ieee"
    if counted.timing_clock != clock:
        return "provisional", f"older clock ({counted.timing_clock}), and others here are timed by {clock}"
    return ("verified", "") if again else ("unverified", "")


def _row(entrant: tuple[str, str, str], runs: Sequence[RunFacts], cells: Sequence[Cell], weak: set[str]) -> Row:
    ranked = [cell for cell in cells if cell.problem_digest not in weak]
    results = {name: [cell.result(name) for cell in ranked] for name in ("best", *BASELINES)}
    speedups = [result.speedup for result in results["best"] if result.speedup is not None]
    sure = [cell for cell in ranked if cell.is_beyond_doubt]
    efforts = [cell.first_correct.attempts for cell in ranked if cell.first_correct]
    return Row(
        rank=0,
        model=entrant[0],
        strategy=entrant[1],
        target=entrant[2],
        runs=tuple(run.run for run in runs),
        cells=tuple(cells),
        score=metrics.geometric_mean([cell.credit for cell in ranked]).value if ranked else 1.0,
        correct=len(speedups),
        own_kernels=sum(1 for cell in ranked if cell.counted and cell.counted.authenticity in OWN_KERNEL),
        fast={name: metrics.fast_curve(found) for name, found in results.items() if found and _is_known(name, ranked)},
        geometric_mean=metrics.geometric_mean(speedups) if speedups else None,
        pass_at={k: _pass_at(ranked, k) for k in PASS_AT},
        roofline=_roofline(sure),
        speed_of_light=_speed_of_light(sure),
        attempts_to_correct=sum(efforts) / len(efforts) if efforts else None,
        cost_usd=metrics.total_cost([facts.cost_usd for run in runs for facts in run.problems]),
        families=grouped_by(ranked, lambda cell: cell.family),
        levels=grouped_by(ranked, lambda cell: cell.level),
        verified=sum(1 for cell in cells if cell.status == "verified"),
        stale=sum(1 for cell in cells if cell.stale),
    )


def _is_known(baseline: str, cells: Sequence[Cell]) -> bool:
    """Whether any kernel was measured against this baseline; a column of failures for want of one would mislead."""
    return any(cell.published is not None and cell.published.against(baseline) is not None for cell in cells)


def _pass_at(cells: Sequence[Cell], k: int) -> float | None:
    if not cells or min(cell.attempts for cell in cells) < k:
        return None
    return sum(metrics.pass_at_k(cell.attempts, cell.passed, k) for cell in cells) / len(cells)


def _roofline(cells: Sequence[Cell]) -> float | None:
    known = [cell.published for cell in cells if cell.published and cell.published.floor_ms]
    fractions = [metrics.roofline_fraction(one.candidate_ms or 0.0, one.floor_ms or 0.0) for one in known]
    return metrics.geometric_mean(fractions).value if fractions else None


def _speed_of_light(cells: Sequence[Cell]) -> float | None:
    scores = []
    for cell in cells:
        found = cell.published
        if found is None or found.floor_ms is None or found.candidate_ms is None or not found.baselines_ms:
            continue
        baseline = found.baselines_ms.get(found.counted or "", min(found.baselines_ms.values()))
        if found.floor_ms < baseline:
            scores.append(metrics.speed_of_light_score(found.candidate_ms, baseline, found.floor_ms))
    return sum(scores) / len(scores) if scores else None


Metric = Callable[[Sequence[Cell]], float | None]
"""Of an entrant's cells for the problems that are ranked; None where it has no value."""


class MetricError(Exception):
    """No such metric, or one that breaks the rules; the message is one sentence."""


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics that `path/to/file.py:function` names, by the function's name; `MetricError` where there is none."""
    found: dict[str, Metric] = {}
    for name in names:
        path, colon, function = name.rpartition(":")
        if not colon or not path:
            raise MetricError(f"no metric {name!r}; give it as path/to/file.py:function")
        if function in found:
            raise MetricError(f"two metrics are named {function!r}; rename one of them")
        found[function] = function_in(name, "metric", MetricError, "(cells)")
    return found


def with_metrics(boards: Sequence[Board], metrics: Mapping[str, Metric]) -> list[Board]:
    """The boards with a further column for each metric. Raises `MetricError` where one fails or gives no number."""
    found = []
    for board in boards:
        own = [{name: _value(name, one, board.ranked(row)) for name, one in metrics.items()} for row in board.rows]
        rows = (row.model_copy(update={"own": values}) for row, values in zip(board.rows, own, strict=True))
        found.append(board.model_copy(update={"rows": tuple(rows)}))
    return found


def _value(name: str, metric: Metric, cells: Sequence[Cell]) -> float | None:
    try:
        value = metric(cells)
        return None if value is None else float(value)
    except Exception as fault:
        raise MetricError(f"metric {name!r} failed ({type(fault).__name__}: {fault}); correct it") from fault


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


class Pair(Record):
    problem: str
    first: float | None
    """Speedup of the first run's best kernel; None where it found no right one."""
    second: float | None
    ratio: float | None
    """second / first, of speedups as metrics count them; None unless both found one, by the same clock."""
    winner: str
    """`first`, `second`, or `same` where the intervals overlap, the clocks differ or neither found a right kernel."""
    timing_clocks: tuple[TimingClock | None, TimingClock | None] = (None, None)
    comparisons: tuple[str | None, str | None] = (None, None)
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)


class RunComparison(Record):
    first: str
    second: str
    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    wins: int
    """Problems on which the second run is clearly better: faster beyond both intervals, or alone in being right."""
    losses: int
    p_value: float
    """Of the two-sided sign test over wins and losses."""
    ratio: Estimate | None
    """Geometric mean of the ratios where both found a right kernel."""


def compare_runs(first: RunFacts, second: RunFacts) -> RunComparison:
    """Pairs are problems with one digest; the rest is named and not counted. Raises `ValueError` where none is shared.

    Times of two devices are not compared, but speedups are each against a baseline on their own device; a reader should
    know, so `show` says where the devices differ.
    """
    ours = {facts.digest: facts for facts in first.problems}
    theirs = {facts.digest: facts for facts in second.problems}
    shared = [digest for digest in ours if digest in theirs]
    if not shared:
        raise ValueError(f"runs {first.run} and {second.run} share no problem; compare runs over the same problems")
    pairs = tuple(_pair(ours[digest], theirs[digest]) for digest in shared)
    wins, losses = (sum(1 for pair in pairs if pair.winner == side) for side in ("second", "first"))
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    return RunComparison(
        first=first.run,
        second=second.run,
        pairs=pairs,
        only_first=tuple(facts.problem for digest, facts in ours.items() if digest not in theirs),
        only_second=tuple(facts.problem for digest, facts in theirs.items() if digest not in ours),
        wins=wins,
        losses=losses,
        p_value=metrics.sign_test(wins, losses),
        ratio=metrics.geometric_mean(ratios) if ratios else None,
    )


def _pair(first: ProblemFacts, second: ProblemFacts) -> Pair:
    one = first.best.measured if first.best else None
    two = second.best.measured if second.best else None
    counts = one.counting() if one else None, two.counting() if two else None
    other_clock = one is not None and two is not None and one.timing_clock != two.timing_clock
    ratio = counts[1] / counts[0] if counts[0] and counts[1] and not other_clock else None
    winner = "same"
    if one is None or two is None:
        winner = "same" if one is two else "first" if two is None else "second"
    elif (two.low or 0) > (one.high or 0) and not two.is_doubtful and not other_clock:
        winner = "second"
    elif (one.low or 0) > (two.high or 0) and not one.is_doubtful and not other_clock:
        winner = "first"
    return Pair(
        problem=first.problem,
        first=one.speedup if one else None,
        second=two.speedup if two else None,
        ratio=ratio,
        winner=winner,
        timing_clocks=(one.timing_clock if one else None, two.timing_clock if two else None),
        comparisons=(one.comparison if one else None, two.comparison if two else None),
        intervals=(one.interval if one else None, two.interval if two else None),
    )
