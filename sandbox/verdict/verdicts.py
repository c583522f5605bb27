"""The records of judging: `Candidate` in, `Verdict` out, with the `Measurement` that a passing verdict rests on."""

import hashlib
import math
import re
import statistics
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer

from kernelwright.problems.languages import LanguageName
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.errors import Stage
from kernelwright.sandbox.verdict.gpu_timing import DeviceRecord
from kernelwright.sandbox.verdict.roofline import Floor
from kernelwright.sandbox.verdict.settings import Accuracy, JudgingEffort
from kernelwright.sandbox.verdict.statistics import Interval, KnownSpread, paired_ratio, ratio_interval, worker_interval

MOST_KERNELS, MOST_FAULTS = 64, 8
WIDEST_NAME = 100


class MemoryFault(Record):
    """One faulty access as compute-sanitizer's memcheck reports it, in the tool's words."""

    what: str
    """`Invalid __global__ write of size 4 bytes`."""
    kernel: str = ""
    where: str = ""
    """File and line, where the kernel was compiled with line numbers."""
    relation: str = ""
    """Of the address to what is allocated: `out of bounds, 1 bytes after the nearest allocation of size 64 bytes`."""
    by: str = ""
    """Thread and block."""

    def __str__(self) -> str:
        place = f" in kernel {self.kernel}" if self.kernel else ""
        place += f" ({self.where})" if self.where else ""
        return f"{self.what}{place}" + "".join(
            [f": {self.relation}" if self.relation else "", f"; by {self.by}" if self.by else ""]
        )


class Memcheck(Record):
    """The outcome of a run under memcheck."""

    state: Literal["found", "clean", "silent"]
    """`clean`: it ended and reported nothing. `silent`: it gave no report; `why` has the reason."""
    faults: tuple[MemoryFault, ...] = Field(default=(), max_length=MOST_FAULTS)
    errors: int = 0
    """All that it counted; one for each thread that went wrong, so mostly more than `faults`."""
    why: str = ""

    def __str__(self) -> str:
        if self.state == "clean":
            return "no faulty access seen in two calls, which proves nothing"
        if self.state == "silent":
            return f"nothing can be said: {self.why}"
        more = f"\n{self.errors} errors in all" if self.errors > 1 else ""
        return "\n".join(map(str, self.faults[:1])) + more


class KernelTime(Record):
    """One kernel of a call by torch's profiler."""

    name: str
    launches: int
    ms: float
    """Of all launches together."""


class KernelFacts(Record):
    """One launch as ncu saw it."""

    kernel: str
    metrics: dict[str, str]
    """By words, value with unit."""
    values: dict[str, float] = Field(default_factory=dict)
    """By ncu's own names, in its base units (ns, bytes, percent); empty in older records."""

    def __str__(self) -> str:
        return "\n".join([self.kernel, *(f"  {name}: {value}" for name, value in self.metrics.items())])


class Compiled(Record):
    """A kernel as ptxas reports it, a claim of the builder that decides nothing."""

    kernel: str
    """Its own name, without namespaces and parameters."""
    registers: int
    spilled_bytes: int
    """Stores and loads together, a thread."""


class MachineCode(Record):
    """Instructions of a kernel by opcode, each with its number.

    SASS with modifiers (`LDG.E.128`); on a processor with the widest vector register (`vaddps.ymm`).
    """

    kernel: str
    opcodes: dict[str, int]

    def count(self, pattern: re.Pattern[str], more: re.Pattern[str] | None = None) -> int:
        """Return how many have an opcode that begins with the pattern, and has `more` anywhere."""
        return sum(
            number
            for opcode, number in self.opcodes.items()
            if pattern.match(opcode) and (more is None or more.search(opcode))
        )


class Look(Record):
    """Observations of one candidate beside its timing."""

    kernels: tuple[KernelTime, ...] = Field(default=(), max_length=MOST_KERNELS)
    """By torch's profiler, in an untimed call."""
    counters: tuple[KernelFacts, ...] = ()
    """The hardware's, by ncu, launch by launch; only where they were asked for."""
    obstacle: str = ""
    """Why `--profile` found nothing, with the remedy."""
    memcheck: Memcheck | None = None
    """None where it was not asked for, or the candidate did not come so far."""
    compiled: tuple[Compiled, ...] = Field(default=(), max_length=MOST_KERNELS)
    """Its kernels by ptxas, where nvcc compiled them."""
    warnings: tuple[str, ...] = Field(default=(), max_length=MOST_FAULTS)
    """ptxas's own on their speed."""
    code: tuple[MachineCode, ...] = Field(default=(), max_length=MOST_KERNELS)
    """Its functions by cuobjdump or objdump; only under `--profile`."""

    @classmethod
    def at(cls, kernels: Sequence[tuple[str, int, float]]) -> "Look | None":
        """From what a worker observed (name, launches, microseconds); None where nothing ran on a device."""
        found = tuple(
            KernelTime(name=name[: 2 * WIDEST_NAME], launches=count, ms=us / 1e3)
            for name, count, us in kernels[:MOST_KERNELS]
            if count > 0 and 0 <= us < math.inf  # a worker may say anything
        )
        return cls(kernels=found) if found else None


Comparison = Literal["faster", "same", "slower", "too_noisy", "unconfirmed"]
TimingClock = Literal["call", "gpu_time", "events", "bound"]
JAIL_OFF = "JAIL OFF by request"
"""The layer that is noted in the evidence where the user did without a jail."""
NOISE_LIMIT = 0.25
"""An interval wider than this, as a share of the speedup's centre, is called too noisy to compare."""
SAME_WITHIN = 0.01
"""A difference that may be smaller than this is called none."""
EAGER, AS_SHIPPED, COMPILED = "eager", "eager as shipped", "torch.compile"
"""Names of baselines: strict eager, eager under torch's own switches, the fastest torch.compile mode."""
PLACEBO_WITHIN = 0.03
"""The baseline against itself must come this close to 1, or the machine is too noisy to say anything."""


class Candidate(Record):
    """A source text that defines `ModelNew`."""

    source: str
    language: LanguageName = "python"

    @cached_property
    def digest(self) -> str:
        """sha256 of the source, as 64 hex digits."""
        return hashlib.sha256(self.source.encode()).hexdigest()


class Pairing(Record):
    """Raw timings of a candidate and one baseline on the same inputs: sample i of both saw the same values.

    Times are in ms. On a processor they are the judge's, from the moment the worker may see the input to the moment it
    is frozen after saying that it is done. On a GPU they are GPU times, see `Measurement.timing_clock`.
    """

    baseline: str
    """`eager`, another form of it (`eager as shipped`, `eager tf32`), or `torch.compile` with its mode."""
    candidate_ms: tuple[float, ...] = Field(min_length=1)
    baseline_ms: tuple[float, ...] = Field(min_length=1)
    workers: tuple[int, ...] = ()
    """Which pair of processes gave sample i, counted from 0; empty where one pair gave all."""

    @property
    def speedup(self) -> float:
        """Median over pairs of baseline / candidate: above 1 the candidate is faster."""
        return paired_ratio(self.baseline_ms, self.candidate_ms)

    @cached_property
    def interval(self) -> Interval:
        """95 % bootstrap interval of `speedup`, over processes and samples."""
        return ratio_interval(self.baseline_ms, self.candidate_ms, self.workers)


class Measurement(Record):
    """Every raw sample behind a passing verdict. What is reported is derived here and nowhere stored."""

    pairings: tuple[Pairing, ...] = Field(min_length=1)
    threads: int
    """Threads that torch and OpenMP were given, the same for both sides."""
    cores: tuple[int, ...] = ()
    """The processor cores that both sides could use; empty in records that do not tell."""
    placebo: Pairing | None = None
    """The eager baseline of one process against that of another, on the same values, within the same minutes."""
    protocol_ms: tuple[float, ...] = ()
    """Time of a call that does nothing, on the judge's clock; it is part of every other time here."""
    candidate_cpu_ms: tuple[float, ...] = ()
    """Processor time of all threads of the candidate in each timed call, measured independently of the clock."""
    eager_cpu_ms: tuple[float, ...] = ()
    """The same of the eager baseline."""
    clock: Literal["bound", "events", "gpu"] = "bound"
    """As it is stored; see `timing_clock`."""
    less_accurate: tuple[str, ...] = ()
    """Baselines whose own results do not meet the candidate's bound on every input distribution."""
    floor: Floor | None = None
    """The roofline of this machine; None where it is not known."""
    on_device: DeviceRecord | None = None
    """Facts of the samples on a GPU; None on a processor."""
    known_spread: KnownSpread | None = None
    """Spread that intervals rest on besides the samples where these are few; None at effort `rank`."""

    @property
    def timing_clock(self) -> TimingClock:
        """Which times the samples are.

        `call`: of a call on a processor, by the judge's clock. `gpu_time`: on the device, the host ahead and the L2
        cache cold, as far as the judge's own clock supports them. In records of older releases of a GPU, `events`: on
        the device, the host not ahead; `bound`: by the judge's clock, with what the protocol takes.
        """
        if self.on_device is None:
            return "call"
        return "gpu_time" if self.clock == "gpu" else self.clock

    @property
    def closest(self) -> Pairing:
        """The pairing with the fastest baseline at equal accuracy: the one that counts."""
        equal = [pairing for pairing in self.pairings if pairing.baseline not in self.less_accurate]
        return min(equal or self.pairings, key=lambda pairing: pairing.speedup)

    @property
    def speedup(self) -> float:
        """Speedup against the fastest baseline at equal accuracy."""
        return self.closest.speedup

    @property
    def speedup_any(self) -> float:
        """Speedup against the fastest of all baselines, less accurate ones too."""
        return min(pairing.speedup for pairing in self.pairings)

    @property
    def is_confirmed(self) -> bool:
        """Return whether the judge's own clock supports that the candidate is faster than the baseline that counts."""
        check = self.on_device.check if self.on_device else None
        if check is None:
            return True
        return check.most_ms * (1 + SAME_WITHIN) < statistics.median(self.closest.baseline_ms)

    @property
    def gpu_time_ms(self) -> float | None:
        """Median GPU time of the candidate; None on a processor and in records of older releases."""
        return self.candidate_ms if self.timing_clock == "gpu_time" else None

    @property
    def call_latency_ms(self) -> float | None:
        """Median call latency of the candidate, as its process reports it; None where not measured."""
        return self.times.get("candidate", {}).get("call_latency_ms")

    @property
    def host_time_ms(self) -> float | None:
        """Median host time of the candidate's call, as its process reports it; None where not measured."""
        return self.times.get("candidate", {}).get("host_time_ms")

    @property
    def is_launch_bound(self) -> bool:
        """Return whether the host takes longer to issue the candidate's call than the device to run it."""
        return (self.host_time_ms or 0.0) > (self.gpu_time_ms or float("inf"))

    @property
    def times(self) -> dict[str, dict[str, float | None]]:
        """The three times of each side in ms, medians; empty on a processor and in records of older releases."""
        found: dict[str, dict[str, float | None]] = {}
        if self.on_device is None or self.timing_clock != "gpu_time":
            return found
        for side, gpu_ms in ({"candidate": self.candidate_ms} | self.baselines_ms).items():
            latencies, hosts = self.on_device.latency_ms.get(side), self.on_device.host_ms.get(side)
            found[side] = {
                "gpu_time_ms": gpu_ms,
                "call_latency_ms": statistics.median(latencies) if latencies else None,
                "host_time_ms": statistics.median(hosts) if hosts else None,
            }
        return found

    def against(self, baseline: str) -> Pairing | None:
        """The pairing with `EAGER`, `AS_SHIPPED` or, of its modes the fastest, `COMPILED`; None where there is none.

        Eager is eager as shipped where torch's own switches change nothing: on a processor, which has none of them, and
        where the device's record says so.
        """
        if baseline == COMPILED:
            found = [one for one in self.pairings if one.baseline.startswith(COMPILED)]
        else:
            found = [one for one in self.pairings if one.baseline == baseline]
        if baseline == AS_SHIPPED and not found and (self.on_device is None or self.on_device.shipped_is_eager):
            return self.against(EAGER)
        return min(found, key=lambda pairing: pairing.speedup, default=None)

    def speedup_against(self, baseline: str) -> float | None:
        """The speedup against one baseline, see `against`."""
        found = self.against(baseline)
        return found.speedup if found else None

    @property
    def speedups(self) -> dict[str, float]:
        """The speedup against each baseline that was measured, by its name, the fastest baseline first."""
        found = {pairing.baseline: pairing.speedup for pairing in self.pairings}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def interval(self) -> Interval:
        """Interval of `speedup`, see `interval_of`; a ranking uses its lower end."""
        return self.interval_of(self.closest)

    def interval_of(self, pairing: Pairing) -> Interval:
        """Its bootstrap interval of 95 %; from few worker pairs that of `worker_interval`, 95 % over all looks."""
        if self.known_spread is None:
            return pairing.interval
        return worker_interval(pairing.baseline_ms, pairing.candidate_ms, pairing.workers, self.known_spread)

    @property
    def comparison(self) -> Comparison:
        """`too_noisy` where the interval is wider than `NOISE_LIMIT` or the placebo is off 1.

        Else by whether the interval leaves 1 by more than `SAME_WITHIN`. What is faster by the word of the candidate's
        process alone is `unconfirmed`.
        """
        if self.interval.half_width > NOISE_LIMIT or not self.is_steady:
            return "too_noisy"
        if self.interval.low > 1 + SAME_WITHIN:
            return "faster" if self.is_confirmed else "unconfirmed"
        return "slower" if self.interval.high < 1 / (1 + SAME_WITHIN) else "same"

    @property
    def is_steady(self) -> bool:
        """Return whether the placebo's interval reaches within `PLACEBO_WITHIN` of 1; true where there was none."""
        if self.placebo is None:
            return True
        interval = self.interval_of(self.placebo)
        return interval.low <= 1 + PLACEBO_WITHIN and interval.high >= 1 / (1 + PLACEBO_WITHIN)

    @property
    def candidate_ms(self) -> float:
        """Median time of the candidate in ms, over all samples of the pairing that counts."""
        return statistics.median(self.closest.candidate_ms)

    @property
    def floor_ms(self) -> float | None:
        """Best time that the device could reach with the reference's algorithm."""
        return self.floor.floor_ms if self.floor else None

    @property
    def fraction_of_floor(self) -> float | None:
        """`floor_ms` over the candidate's time: 1 is as fast as the device can be."""
        return self.floor.fraction(self.candidate_ms) if self.floor else None

    @property
    def baselines_ms(self) -> dict[str, float]:
        """Median time in ms of each baseline."""
        return {pairing.baseline: statistics.median(pairing.baseline_ms) for pairing in self.pairings}


class Authenticity(Record):
    """Evidence, separate from correctness, of whether the candidate computes with code of its own."""

    label: Literal["custom", "mixed", "library_only", "unknown"]
    evidence: tuple[str, ...] = ()


class ProblemStatus(Record):
    """Whether the problem can tell a right candidate from a lazy one. A weak problem is never ranked."""

    status: Literal["ok", "weak"]
    why: tuple[str, ...] = ()
    """For a weak problem, one sentence for each trivial answer that it accepts."""


class Evidence(Record):
    """The evidence of every verdict, passed or failed."""

    jail: tuple[str, ...]
    """The isolation layers that were active, outermost first."""
    seconds: dict[str, float]
    """Wall seconds by stage: those that were reached. `headers` is how long parts of torch's light header
    were made beside the build, once on a machine."""
    authenticity: Authenticity
    problem_status: ProblemStatus | None = None
    """None where nobody has looked: that is done beside the first candidate of a problem that is right."""
    versions: dict[str, str]
    """Versions of python, torch, compiler and device, and `judge_version`.

    Records of older releases have `harness` in its place, a digest of the judge's sources.
    """
    deterministic: bool | None = None
    """Whether the same values gave the same bytes twice; None where that was not reached."""
    builds: tuple[str, ...] = ()
    """The build of each extension: its shortcut, if any, and its seconds, in the builder's own words."""
    hidden_builds: tuple[str, ...] = ()
    """Extensions that could not be built while the candidate went on without them, each with the deciding line. The
    builder's own words too."""
    look: Look | None = None
    """Its kernels on a device, and the reports of the tools that were asked for."""
    families_left_out: tuple[str, ...] = ()
    """Families of values that it was not judged on: the problem leaves them out, or float64 gives nothing but NaN."""
    device: str = "cpu"
    """The device: `cpu`, `cuda`, or `cuda:N`."""
    exact: tuple[str, ...] = ()
    """On a device: how results in float64 were computed where they were asked for: `whole`, `parts`, `processor`."""
    weights: Literal["copied", "seeded"] | None = None
    """`copied`: the candidate had the reference's weights. `seeded`: both models were constructed under one seed, which
    each worker pair has again. None where there are none, it was not reached, or in records of older releases."""
    without: tuple[str, ...] = ()
    """Defences of the judge that were switched off. Do not rely on a verdict with any."""
    baselines_left_out: tuple[str, ...] = ()
    """`NAME: reason` of each optional baseline that could not run for this problem."""
    effort: JudgingEffort = "rank"
    """With how much effort it was judged; records from before there were several are all of `rank`."""
    accuracy: Accuracy = "ieee"
    """The errors that it was allowed; records from before there was a choice are all of `ieee`."""
    errors: dict[str, float] = Field(default_factory=dict)
    """By measure, the largest error of all outputs as a share of the bound of `ieee`, or a limit of it.

    It is a limit where the result is so near to the reference's own that float64 was not asked. `kernelbench` is the
    share of KernelBench's tolerance, on inputs as drawn, where that was looked at. Empty where nothing was compared.
    """
    errors_allowed: dict[Accuracy, dict[str, float]] = Field(default_factory=dict)
    """By accuracy, the largest of such shares that are right, as far as they are known for this problem and device."""
    not_met: tuple[str, ...] = ()
    """At effort `screen`: families of values that no call has tested, and what else was not looked at."""
    checks: dict[str, Any] = Field(default_factory=dict)
    """Results of further checks by their names; left out of what is stored where there are none."""

    @model_serializer(mode="wrap")
    def _stored(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = serialize(self)
        if not found.get("checks"):
            found.pop("checks", None)
        return found

    def meets(self, accuracy: Accuracy) -> bool | None:
        """Return whether all errors that were seen are within an accuracy; None where that is not known."""
        allowed = self.errors_allowed.get(accuracy, {})
        if not self.errors.keys() & allowed.keys():
            return None
        return all(self.errors.get(measure, 0.0) <= most for measure, most in allowed.items())


class Passed(Record):
    """The candidate is right on every input that it was given, timed ones included."""

    outcome: Literal["passed"] = "passed"
    measurement: Measurement
    evidence: Evidence


class Failed(Record):
    """The candidate failed, at one stage, for one reason."""

    outcome: Literal["failed"] = "failed"
    stage: Stage
    reason: str
    """One or a few lines, the deciding fact first: what a repair prompt needs."""
    log: str = ""
    """The trimmed output of the compiler or the traceback."""
    evidence: Evidence


Verdict = Annotated[Passed | Failed, Field(discriminator="outcome")]
VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)
