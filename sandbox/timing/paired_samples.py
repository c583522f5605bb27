"""`PairedSamples`: what has been measured of one candidate so far."""

from collections import defaultdict

from kernelwright.sandbox.calls.timed_call import Timed
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing
from kernelwright.sandbox.verdict.worker_intervals import KnownSpread

PLACEBO = "eager again"


class PairedSamples:
    """What has been measured so far of one candidate; all times in ms, sample i of all lists on the same values."""

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

    def measurement(self, settings: Settings) -> Measurement:
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
