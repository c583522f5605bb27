"""Paired timing: a candidate's worker and its baselines alternately on the same fresh values, every output checked."""

import itertools
import math
import random
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Self

from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Session, Timed
from kernelwright.sandbox.correctness.checks import Call, Cases, Trial
from kernelwright.sandbox.correctness.compare import IEEE
from kernelwright.sandbox.correctness.families import DRAWN, schedule, vary
from kernelwright.sandbox.judge.stages import WarmWorkers
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baseline_facts import PLACEBO
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.statistics import KnownSpread
from kernelwright.sandbox.verdict.verdicts import NOISE_LIMIT, SAME_WITHIN, Measurement, Pairing


class FreshValues:
    """Values for one candidate by input distribution, drawn ahead while nothing is timed.

    A process draws one set of values at a time, so take what was drawn ahead before asking for more.
    """

    def __init__(self, baselines: Baselines, settings: JudgeSettings, beside: ThreadPoolExecutor) -> None:
        self._baselines, self._settings, self._beside = baselines, settings, beside
        families = baselines.domain.families if settings.varies_inputs else ()
        self._families = schedule(random.SystemRandom(), families)
        self._only: Values | None = None
        """Values of the first call, used for all calls where fresh values are disabled."""
        self._ahead: deque[tuple[str, Future[Values]]] = deque()
        """Families and values of the pairs to come, the next one first."""
        self._warming: Future[Values] | None = None

    def of(self, number: int, family: str = DRAWN) -> Values:
        """Of this family, for worker pair `number`; drawn now."""
        return self.by(self._baselines.sources(number)[0], family)

    def by(self, source: ReferenceSession, family: str = DRAWN, cores: Sequence[int] = ()) -> Values:
        if "fresh_values" in self._settings.without:
            self._only = self._only or source.draw()
            return self._only
        values = vary(source.draw(cores), family)
        return values._replace(seed=secrets.randbits(62)) if self._baselines.is_seeded else values

    def draw(self, number: int) -> tuple[str, Values]:
        """The next input distribution that the problem is judged on, and values of it; drawn now."""
        family = self._family()
        return family, self.of(number, family)

    def next(self, number: int, wanted: int) -> tuple[str, Values]:
        """The same, where this many are still wanted for this worker pair; those drawn ahead, where possible."""
        self.draw_ahead(number, wanted)
        if not self._ahead:
            return self.draw(number)
        family, values = self._ahead.popleft()
        return family, values.result()

    def draw_ahead(self, number: int, wanted: int) -> None:
        """Have the next ones for this worker pair drawn by other threads, unless there are some, or who draws is busy
        with what is right: as many, but no more than are wanted, as there are processes that may draw.
        """
        sources = self._sources(number)
        if self._ahead or sources[0][0] is self._baselines.eager(number):
            return
        for source in sources[:wanted]:
            family = self._family()
            self._ahead.append((family, self._drawing(family, source)))

    def warm(self, number: int) -> None:
        """Have those for the untimed calls of this worker pair, which comes next, drawn by another thread.

        Only where this many processes live that who draws them has no part in what is compared meanwhile.
        """
        if self._baselines.draws_twice:
            self._warming = self._drawing(DRAWN, self._sources(number)[0])

    def warmed(self, number: int) -> Values:
        """Those for the untimed calls of this worker pair."""
        warming, self._warming = self._warming, None
        return warming.result() if warming else self.of(number)

    def in_turn(self, number: int, families: Collection[str]) -> Cases:
        """Each with values of it, when nothing is timed any more. Where more than one process may draw, the next ones
        are drawn meanwhile.
        """
        if self._warming is not None:
            self._warming.result()
        sources = self._sources(number)
        if len(sources) == 1:
            yield from ((family, self.of(number, family)) for family in families)
            return
        drawn = (
            (family, self._drawing(family, source))
            for family, source in zip(families, itertools.cycle(sources), strict=False)
        )
        ahead = deque(itertools.islice(drawn, len(sources)))
        while ahead:
            family, drawing = ahead.popleft()
            values = drawing.result()
            ahead.extend(itertools.islice(drawn, 1))
            yield family, values

    def _sources(self, number: int) -> list[tuple[ReferenceSession, int]]:
        """References that may draw at the same time, each on a core of its own."""
        cores = self._settings.cores
        return list(zip(self._baselines.sources(number), (cores[0], cores[-1]), strict=False))

    def _family(self) -> str:
        return next(family for family in self._families if family not in self._baselines.domain.outside)

    def _drawing(self, family: str, source: tuple[ReferenceSession, int]) -> Future[Values]:
        return self._beside.submit(self.by, source[0], family, [source[1]])


@contextmanager
def in_background(work: Callable[[], object], beside: bool = True) -> Iterator[None]:
    """Have `work` done by another thread during the block, or by this one before it where it cannot be `beside`.

    When the block is left it is done, or its error raised; an error of the block comes first.
    """
    if not beside:
        work()
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
    future.result()


class PairedSamples:
    """Measurements of one candidate so far; all times in ms, sample i of all lists on the same values."""

    def __init__(self, known_spread: KnownSpread | None = None) -> None:
        self.known_spread = known_spread
        self.candidate: list[float] = []
        self.candidate_cpu: list[float] = []
        self.eager_cpu: list[float] = []
        self.baselines: dict[str, list[float]] = defaultdict(list)
        self.workers: list[int] = []
        self.placebo: list[tuple[float, float, int]] = []
        """Two processes of the eager baseline on the same values, and the worker pair."""
        self.protocol: list[float] = []

    def add(self, number: int, mine: Timed, theirs: Timed) -> None:
        """One pair of the candidate and eager, by worker pair `number`; the baselines' lists are the caller's."""
        self.candidate.append(mine.milliseconds)
        self.candidate_cpu.append(mine.cpu_ms)
        self.eager_cpu.append(theirs.cpu_ms)
        self.workers.append(number)

    def measurement(self, settings: JudgeSettings) -> Measurement:
        candidate, workers = tuple(self.candidate), tuple(self.workers)
        placebo = None
        if self.placebo:
            again, eager, groups = zip(*self.placebo, strict=True)
            placebo = Pairing(baseline=PLACEBO, candidate_ms=eager, baseline_ms=again, workers=groups)
        return Measurement(
            pairings=tuple(
                Pairing(baseline=name, candidate_ms=candidate, baseline_ms=tuple(times), workers=workers)
                for name, times in self.baselines.items()
            ),
            threads=settings.threads,
            cores=settings.cores,
            placebo=placebo,
            protocol_ms=tuple(self.protocol),
            candidate_cpu_ms=tuple(self.candidate_cpu),
            eager_cpu_ms=tuple(self.eager_cpu),
            known_spread=self.known_spread,
        )


EFFORT = 0.8
"""The share of worker pairs and of pairs that is measured in any case."""
FEWEST = 4
"""Worker pairs: from three, intervals are too narrow too often."""
SHARE_OF_DISTANCE = 1 / 6
"""The half width, as a share of the distance of the logarithm from 0: 1 lies at least six half widths away."""
TO_CHOOSE = 0.05
"""The half width that is enough of what is clearly the best so far: it is judged again before it is published. Where it
is better by far, `SHARE_OF_DISTANCE` is, up to `FAR_BETTER`.
"""
FAR_BETTER = 0.1
AT_LEAST, FAR_FROM_IT = 2, 1.5
"""Worker pairs before it is given up to become as sure as that, where the last one would leave a half width of this
many times what is wanted.
"""
STUDENT = {4: 3.182, 5: 2.776}
"""By number of worker pairs, the 97.5 % point of Student's t with one degree less."""


def is_clearly_slower(measurement: Measurement) -> bool:
    """Return whether the slowdown is beyond doubt.

    An interval from four processes is too narrow more often than one from five. So it is widened here by the ratio of
    Student's t for four and for five. It must be narrow enough for a claim (`NOISE_LIMIT`), and narrow against its
    distance from 1; and the placebo must be steady.
    """
    groups = len(set(measurement.closest.workers))
    if groups < FEWEST or not measurement.is_steady:
        return False
    interval = measurement.interval
    centre, half = math.log(interval.low * interval.high) / 2, math.log(interval.high / interval.low) / 2
    half *= STUDENT.get(groups, STUDENT[5]) / STUDENT[5]
    is_beyond = centre + half < -math.log(1 + SAME_WITHIN)
    return is_beyond and half < min(math.log(1 + NOISE_LIMIT), SHARE_OF_DISTANCE * -centre)


def is_enough_to_choose(measurement: Measurement, best_speedup: float | None, target: float) -> bool:
    """Return whether a search knows enough of a candidate.

    It does if the candidate is clearly below the best speedup (1 without one) or clearly above it, or if the interval
    is as narrow as `target`.

    """
    interval, threshold = measurement.interval, best_speedup or 1.0
    if not measurement.is_steady:
        return False
    if interval.high < threshold / (1 + SAME_WITHIN) or interval.half_width < target:
        return True
    if interval.low <= threshold * (1 + SAME_WITHIN):
        return False
    enough = min(FAR_BETTER, max(TO_CHOOSE, SHARE_OF_DISTANCE * math.log(interval.low / threshold)))
    return interval.half_width < enough or _is_in_vain(measurement, enough)


def _is_in_vain(measurement: Measurement, enough: float) -> bool:
    """Return whether even all looks would leave too wide an interval, and could not make it a claim."""
    groups, known = len(set(measurement.closest.workers)), measurement.known_spread
    if known is None or groups < AT_LEAST:
        return False
    half = measurement.interval.half_width
    in_the_end = half * math.sqrt(groups / known.looks)
    may_become_a_claim = in_the_end <= NOISE_LIMIT <= half
    return in_the_end > FAR_FROM_IT * enough and not may_become_a_claim


SLOWEST_CALL_S = 5.0
"""A call is never cut off before this, however fast the baseline is."""
PAIRS_A_WORKER = 4
BACKWARDS = (1, 2)
"""Of each four pairs, those in which the candidate comes last: a drift of the machine hits both sides alike."""
SETTLING_MS, MOST_SETTLING = 20.0, 8
"""For about so long, and at most this many times, a side is called again before it is timed."""
BESIDE = 4
"""Most that goes on beside a comparison at the end of a worker pair: a worker starts, one ends, values are drawn."""
OVERRUN, FEWEST_WORKERS = 4, 2
"""If the time budget is overrun by this factor, this number of worker pairs is enough."""


class Timing(Trial):
    """Times one candidate, worker pair after worker pair, until enough is known. Use it as a context.

    What is not timed goes on side by side: a result is compared while the next values are drawn.
    """

    def __init__(self, baselines: Baselines, settings: JudgeSettings, best_speedup: float | None = None) -> None:
        super().__init__(baselines, settings)
        self._best_speedup = best_speedup
        self._beside = ThreadPoolExecutor(BESIDE)
        self.fresh: FreshValues = FreshValues(baselines, settings, self._beside)
        self._retired: Future[str] | None = None
        self.warm: WarmWorkers | None = None
        """The candidate's workers, if the next one is to start beside the last comparison of a worker pair."""
        self._spent_s = 0.0
        self.samples = PairedSamples(baselines.next_candidate())
        self.pairs = 0
        """Worker pairs that were timed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # No reference may be left with a question whose answer nobody hears.
        self._beside.shutdown(wait=True)

    def begin(self, session: Session) -> ReferenceSession:
        """Begin the next worker pair with this worker of the candidate, and return its reference."""
        self.number, self.session = self.pairs, session
        self.reference = self._baselines.eager(self.number)
        return self.reference

    def warm_up(self, session: Session) -> None:
        """Make untimed calls of all sides; those of the first worker are checked."""
        start = time.monotonic()
        if self.number == 0:  # before the first result lies in the memory of a process that may be asked for these
            self.allowed = self._baselines.allowed(self._settings.accuracy) or IEEE
        # What is wrong waits for no other.
        values = self.fresh.warmed(self.number) if self.number else self.fresh.by(self.reference)
        for turn in range(self._settings.warm_up):
            theirs = self.reference.show(values)
            size = theirs.output.size
            if turn == 0:
                with in_background(partial(self.reference.expect, size), beside=self._baselines.backend.side_by_side):
                    session.expect(size)
                session.returns_inputs = self.reference.returns_inputs
                session.may_spoil = self.reference.may_spoil
            self.reference.keep(theirs.output)  # before the candidate runs, who might find where it lies
            mine = self.call(values)
            if self.number == 0:
                self.run("each call", Call(DRAWN, values, mine, theirs))
                if turn == 0:
                    self.run("first call", Call(DRAWN, values, mine, theirs))
                    self._baselines.start()
                nothing = Values({"v": None}, ())
                mine, theirs = mine._replace(output=nothing), theirs._replace(output=nothing)
                del values  # before others take its place, which may be as large as the device holds
                values = self.fresh.of(self.number)
            self._warm_beside(values, size)
            if turn == self._settings.warm_up - 1:
                self._settle(session, values, (mine.milliseconds, theirs.milliseconds))
        self._spent_s += time.monotonic() - start if self.number > 0 else 0.0

    def _warm_beside(self, values: Values, result_bytes: int) -> None:
        for other in (self._baselines.placebo(self.number), *self._baselines.compiled()):
            if other is not None:
                other.expect(result_bytes)
                other.call_ms(values)

    def retire(self, session: Session) -> None:
        """End a worker whose part is done, while the next one starts; it has ended before anything is timed again."""
        self._retired = self._beside.submit(session.close)

    def _settle(self, session: Session, values: Values, took_ms: tuple[float, float]) -> None:
        """Make more untimed calls if they are short: a fresh process needs about ten to reach its speed.

        Each side by its own time, the candidate's first; both end together, so that neither has cooled meanwhile.
        """
        mine, theirs = (min(MOST_SETTLING, int(SETTLING_MS / ms)) for ms in took_ms)
        for left in range(max(mine, theirs), 0, -1):
            if left <= mine:
                session.call_ms(values, self._call_limit_s(), self.operation)
            if left <= theirs:
                self.reference.call_ms(values)

    def measure(self, session: Session) -> None:
        """The timed calls of the present worker pair; the next one is due after it."""
        if self._retired is not None:
            self._retired.result()
        start = time.monotonic()
        self.samples.protocol.append(self.reference.nothing_ms())
        for turn in range(PAIRS_A_WORKER):
            while not self._pair(session, turn):
                pass
        self._ending.result()
        self._spent_s += time.monotonic() - start
        self.pairs += 1

    def _pair(self, session: Session, turn: int) -> bool:
        """All sides once on the same values. In two of four pairs the placebo is one of them.

        False where nothing could be compared on these values: they count for nothing.
        """
        family, values = self.fresh.next(self.number, PAIRS_A_WORKER - turn)
        other = self._baselines.placebo(self.number) if turn % 2 == 0 else None
        times: dict[int, float] = {}
        sides = [None, self.reference, *self._baselines.compiled(), *([other] if other else [])]  # None: the candidate
        for side in sides[::-1] if turn in BACKWARDS else sides:
            if side is None:
                mine = self.call(values)
            elif side is self.reference:
                theirs = side.show(values)
            else:
                times[id(side)] = side.call_ms(values)
        session.refuse_activity_while_stopped()  # while others were called; nobody else asks after its last call
        if self.excludes(family, theirs, values):
            return False
        if turn < PAIRS_A_WORKER - 1:
            self.fresh.draw_ahead(self.number, PAIRS_A_WORKER - 1 - turn)
        else:
            self._ending = self._beside.submit(self._start_ahead)
        if self.has("timed_check"):
            self.run("each call", Call(family, values, mine, theirs))
        samples = self.samples
        samples.add(self.number, mine, theirs)
        samples.baselines[self.reference.form.baseline].append(theirs.milliseconds)
        for compiled in self._baselines.compiled():
            samples.baselines[compiled.form.baseline].append(times[id(compiled)])
        if other:
            samples.placebo.append((times[id(other)], theirs.milliseconds, self.number))
        return True

    def _start_ahead(self) -> None:
        """Start another worker while fewer were timed than are wanted; whether it is needed is not known yet."""
        if self.warm is not None and self.number + 1 < self._settings.worker_pairs:
            self.fresh.warm(self.number + 1)
            self.warm.start(1)

    def call(self, values: Values) -> Timed:
        return self.session.call(values, self._call_limit_s(), self.operation)

    def _call_limit_s(self) -> float:
        longest = self._settings.call_timeout_s
        known = [ms for times in self.samples.baselines.values() for ms in times]
        if not known:
            return longest
        return min(longest, max(SLOWEST_CALL_S, self._settings.call_factor * max(known) / 1e3))

    @property
    def is_enough(self) -> bool:
        """Return whether another worker pair would tell nothing more that is wanted."""
        settings, count = self._settings, len(self.samples.candidate)
        budgets = self._spent_s / settings.time_budget_s
        if count >= settings.max_pairs or (budgets > OVERRUN and self.pairs >= FEWEST_WORKERS):
            return True
        if settings.effort != "rank":
            done = budgets > 1 or self.pairs >= settings.worker_pairs
            found = self.samples.measurement(settings)
            return done or is_enough_to_choose(found, self._best_speedup, settings.interval_target)
        effort = min(count / settings.min_pairs, self.pairs / settings.worker_pairs)
        if effort < EFFORT:
            return False
        found = self.samples.measurement(settings)
        if is_clearly_slower(found):
            return True
        return effort >= 1 and (budgets > 1 or found.interval.half_width < settings.interval_target)
