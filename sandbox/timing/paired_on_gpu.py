"""Paired timing on a device: two clocks for every call, and a burst that tells whether to believe the finer one."""

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from kernelwright.sandbox.calls.device import CudaDevice
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.calls.memory_relief import free_cached_memory
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.calls.timed_call import Timed, Witnessed
from kernelwright.sandbox.correctness.families import DRAWN
from kernelwright.sandbox.machine.clocks import ClockSample, steady
from kernelwright.sandbox.tensors.merging import merged, parted
from kernelwright.sandbox.tensors.values import Values
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.timing.paired import BACKWARDS, PAIRS_A_WORKER, Timing
from kernelwright.sandbox.timing.paired_samples import PLACEBO, PairedSamples
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.gpu_timing import Burst, DeviceRecord
from kernelwright.sandbox.verdict.roofline import Floor
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, EAGER, Measurement
from kernelwright.sandbox.verdict.worker_intervals import KnownSpread

CANDIDATE = "candidate"
TRIES = 3
"""A pair that does not count is replaced, until so many times the wanted number have been tried."""
BURST_MS = 30.0
"""A burst lasts about so long, within the numbers of calls in `SIZES`."""
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Few different ones, since what a burst takes in the reference is found once for each."""
FEWEST_CALLS, MOST_CALLS = SIZES[0], SIZES[-1]
MEMORY_SHARE = 0.7
"""Of the device's free memory, for a burst."""
BURSTS = 3
LONG_MS = 1.0
"""A single call that takes so long is told from its events by what the protocol takes in the reference's."""
PROTOCOLS = 5
ANEW, MOST_ANEW = "an output lay in memory that was not seen before", 2 * PAIRS_A_WORKER
"""After so many a candidate that takes new memory for each call is timed as it is, and pays for its being looked up; a
baseline never does, whose time would only be longer."""
WAKING_MS = 1.0
"""Where the reference takes so long, every side's call begins with a tiny kernel of ours, and its events behind that.

A device takes 0.1 to 0.2 ms to turn from one process to the next, and may stamp an event before it has; which side that
befalls depends on who used the device last. In shorter calls the kernel costs more in noise than it mends.
"""


class DeviceSamples(PairedSamples):
    """Samples by both clocks; the lists of the base class are by the judge's."""

    def __init__(
        self, device: CudaDevice, impossible: Callable[[float], bool], known_spread: KnownSpread | None
    ) -> None:
        super().__init__(known_spread)
        self._device, self._impossible = device, impossible
        self.events: dict[str, list[float | None]] = defaultdict(list)
        """By side, parallel to the times on the judge's clock."""
        self.placebo_events: list[tuple[float | None, float | None, int]] = []
        self.clocks: list[ClockSample | None] = []
        self.dropped: Counter[str] = Counter()
        self.switches: dict[str, dict[str, object]] = {}
        self.copies_outputs = False
        self.shipped_is_eager = False
        self.burst: Burst | None = None

    @property
    def uses_events(self) -> bool:
        """Whether every sample has them, a burst confirms them, and they are possible at all."""
        if self.burst is None or any(None in times for times in self.events.values()):
            return False
        return self.are_confirmed_by(self.burst) and not self._impossible(statistics.median(self._mine))

    def are_confirmed_by(self, burst: Burst) -> bool:
        """Whether the candidate has told events, and this leaves no room for its calls to take longer."""
        return bool(self._mine) and burst.confirms(statistics.median(self._mine))

    @property
    def _mine(self) -> list[float]:
        return [ms for ms in self.events[CANDIDATE] if ms is not None]

    def measurement(self, settings: Settings) -> Measurement:
        """The record, by the finer clock that can be believed."""
        by_events = self.uses_events
        found = self._by_events().measurement(settings) if by_events else super().measurement(settings)
        facts = self._device.clocks.facts()
        record = DeviceRecord(
            device=self._device.name,
            architecture=self._device.architecture,
            driver=facts.driver if facts else "",
            switches=self.switches,
            copies_outputs=self.copies_outputs,
            shipped_is_eager=self.shipped_is_eager,
            bound_ms={name: tuple(times) for name, times in self._sides()},
            device_ms={name: tuple(times) for name, times in self.events.items()},
            sm_mhz=tuple(sample.sm_mhz if sample else None for sample in self.clocks),
            dropped=dict(self.dropped),
            burst=self.burst,
        )
        return found.model_copy(update={"clock": "events" if by_events else "bound", "on_device": record})

    def _sides(self) -> Iterator[tuple[str, list[float]]]:
        yield CANDIDATE, self.candidate
        yield from self.baselines.items()

    def _by_events(self) -> PairedSamples:
        other = PairedSamples(self.known_spread)
        other.candidate = [ms or 0.0 for ms in self.events[CANDIDATE]]
        for name in self.baselines:
            other.baselines[name] = [ms or 0.0 for ms in self.events[name]]
        other.placebo = [(again or 0.0, eager or 0.0, number) for again, eager, number in self.placebo_events]
        other.candidate_cpu, other.eager_cpu = self.candidate_cpu, self.eager_cpu
        other.workers, other.protocol = self.workers, self.protocol
        return other


class DeviceTiming(Timing):
    """Times one candidate on the device; hold the device meanwhile."""

    samples: DeviceSamples

    def __init__(
        self,
        baselines: Baselines,
        settings: Settings,
        device: CudaDevice,
        floor: Callable[[], Floor | None],
        beat: float | None = None,
    ) -> None:
        super().__init__(baselines, settings, beat)
        self._device, self._floor = device, floor
        self.samples = DeviceSamples(device, self._is_impossible, self.samples.known_spread)
        self._reference_ms = math.inf

    def warm_up(self, session: Session) -> bool | None:
        """As elsewhere; the baseline also under torch's own precision switches, where these change anything."""
        if self._retired is not None:  # it might still be heard on the device
            self._retired.result()
        repeats = super().warm_up(session)
        if self._baselines.shipped_differs:
            values = self.fresh.of(self.number)
            for _ in range(self._settings.warm_up):
                self.baseline.shipped(values)
        return repeats

    def _settle(self, session: Session, values: Values, took_ms: tuple[float, float]) -> None:
        """As elsewhere; the first worker's turns tell how long the reference takes, for all."""
        if self.number == 0:
            self._reference_ms = min(self._reference_ms, took_ms[1])
        super()._settle(session, values, took_ms)

    def retire(self, session: Session) -> None:
        """End a worker whose part is done while the next one is loaded, unless that needs its memory."""
        if self._baselines.first.needs.is_large:
            session.close()
        else:
            self._retired = self._beside.submit(session.close)

    def measure(self, session: Session) -> None:
        """The timed calls of the present worker pair; after them a burst, unless an earlier one has confirmed."""
        assert isinstance(session, GpuSession)
        start, good = time.monotonic(), 0
        self._device.wakes = self._reference_ms >= WAKING_MS
        try:
            for _ in range(TRIES * PAIRS_A_WORKER):
                good += self._counts(session, good)
                if good == PAIRS_A_WORKER:
                    break
        finally:
            self._device.wakes = False
        self._spent_s += time.monotonic() - start
        self.samples.protocol.append(statistics.median(self.baseline.protocol_ms() for _ in range(PROTOCOLS)))
        self.samples.switches = {CANDIDATE: session.switches, EAGER: self.baseline.switches}
        self.samples.shipped_is_eager = not self._baselines.shipped_differs
        if self._baselines.shipped_differs:
            self.samples.switches[AS_SHIPPED] = self.baseline.shipped_switches
        for compiled in self._baselines.compiled():
            self.samples.switches[compiled.form.baseline] = compiled.switches
        self.samples.copies_outputs = session.copies_outputs
        if self.samples.candidate and not self.samples.uses_events:
            self.samples.burst = self._burst(session) or self.samples.burst
        self.number += 1

    def meet_the_rest(self, session: Session) -> None:
        """As elsewhere; a burst has left it with memory for other inputs."""
        if self.unmet or self._meets_other_weights:
            self._baselines.eager(self.number - 1).lend_again(session)
        super().meet_the_rest(session)

    def _call_unread(self, session: Session, values: Values) -> None:
        """The result is looked up, so that the memory it lies in is known."""
        self._call(session, values)

    @property
    def is_enough(self) -> bool:
        """As elsewhere; where hardly any pair counts, it ends with what there is."""
        if self.number < TRIES * self._settings.worker_pairs:
            return bool(self.samples.candidate) and super().is_enough
        if not self.samples.candidate:
            why = ", ".join(f"{reason} ({count})" for reason, count in self.samples.dropped.items())
            raise MachineError(f"no timed call on the device counts: {why}; end what else uses it, or let it cool")
        return True

    def _counts(self, session: GpuSession, turn: int) -> bool:
        """All sides once on the same values, each checked; whether the times count."""
        family, values = self.fresh.draw(self.number)
        other = self._other() if turn % 2 == 0 else None
        done: dict[str, Timed] = {}
        for name, call in self._calls_of(session, other, values, turn):
            done[name] = call()
        session.refuse_work_done_meanwhile()
        if self._excludes(family, done[EAGER], values):
            self.samples.dropped["the values lie outside of what the problem is defined for"] += 1
            return False
        if self._has("timed_check"):
            self._check(done[CANDIDATE], done[EAGER], values, family)
        self.baseline.let_go()
        fault = self._fault({name: timed.device for name, timed in done.items() if timed.device is not None})
        if fault:
            self.samples.dropped[fault] += 1
            return False
        self._keep(done.pop(CANDIDATE), done.pop(EAGER), done.pop(PLACEBO, None))
        for name, timed in done.items():
            self._note(name, timed)
        if self.baseline.needs.is_large:
            free_cached_memory()
        return True

    def _calls_of(
        self, session: GpuSession, other: ReferenceSession | None, values: Values, turn: int
    ) -> list[tuple[str, Callable[[], Timed]]]:
        """All sides by name in the order in which they are called in this turn.

        The baseline's own process comes once more under torch's own precision switches, where these change anything.
        Its first result is read where it lies only if it is asked nothing else before the check, and the candidate does
        not run meanwhile, who might find where that is.
        """
        baseline, shipped = self.baseline, self._baselines.shipped_differs
        stays = not shipped and turn not in BACKWARDS
        calls = [
            (CANDIDATE, lambda: self._call(session, values)),
            (EAGER, lambda: self._shown(baseline, values, stays)),
        ]
        calls += [(AS_SHIPPED, lambda: _unread(baseline.shipped(values)))] if shipped else []
        calls += [
            (compiled.form.baseline, partial(_called, compiled, values)) for compiled in self._baselines.compiled()
        ]
        calls += [(PLACEBO, partial(_called, other, values))] if other else []
        return calls[::-1] if turn in BACKWARDS else calls

    def _shown(self, baseline: ReferenceSession, values: Values, stays: bool) -> Timed:
        """The baseline's call; a copy of its result, unless that stays where it lies."""
        timed = baseline.show(values)
        if not stays:
            baseline.keep(timed.output)
        return timed

    def _keep(self, mine: Timed, theirs: Timed, again: Timed | None) -> None:
        samples = self.samples
        samples.add(self.number, mine, theirs)
        samples.events[CANDIDATE].append(_events(mine))
        samples.clocks.append(mine.device.clocks if mine.device else None)
        self._note(self.baseline.form.baseline, theirs)
        if again:
            samples.placebo.append((again.milliseconds, theirs.milliseconds, self.number))
            samples.placebo_events.append((_events(again), _events(theirs), self.number))

    def _note(self, name: str, timed: Timed) -> None:
        self.samples.baselines[name].append(timed.milliseconds)
        self.samples.events[name].append(_events(timed))

    def _fault(self, named: dict[str, Witnessed]) -> str:
        """Why a pair does not count; empty where it does."""
        sides, anew = list(named.values()), {name for name, side in named.items() if side.mapped_anew}
        if any(side.made_twice for side in sides):
            return "memory was missing, and the call was made once more on the same values"
        if anew - {CANDIDATE} or (anew and self.samples.dropped[ANEW] < MOST_ANEW):
            return ANEW
        if not all(side.prepared.was_idle for side in sides):
            return "the device was not idle before the call"
        if not all(steady([*self.samples.clocks, *(side.clocks for side in sides)])[-len(sides) :]):
            return "a clock was low or the device slowed down by heat"
        return ""

    def _is_impossible(self, milliseconds: float) -> bool:
        floor = self._floor()
        return floor is not None and floor.is_impossible(milliseconds)

    def _burst(self, session: GpuSession) -> Burst | None:
        """A burst that confirms the events of single calls, or the fastest of some; each on values of its own, and its
        results are checked. The worker's last task.

        To choose, long calls by themselves are enough where they confirm. None where the candidate can not hold so many
        results at once, for want of memory or since each takes the place of the last, and where each call would have to
        be seeded: then its events stay unconfirmed.
        """
        alone = self._burst_of_one() if self._settings.effort != "rank" else None
        if alone is not None and self.samples.are_confirmed_by(alone):
            return alone
        calls = 0 if self._baselines.is_seeded else self._calls()
        if calls < FEWEST_CALLS:
            return self._burst_of_one()
        try:
            session.lend_layout([*self.baseline.layout] * calls)
            values, fastest = self._fastest_run(session, calls)
        except Refused:
            return None
        if not _is_whole(session, fastest):
            return None
        for one, result in zip(values, parted(fastest.output, calls), strict=True):
            self._check(fastest._replace(output=result), self.baseline.show(one), one, DRAWN)
        return self._confirmation(values, fastest)

    def _confirmation(self, values: list[Values], run: Timed) -> Burst:
        """What a run of so many calls says, by what the same burst of the reference took; that is found once."""
        overhead_ms, each_ms = self.baseline.burst(values, BURSTS)
        alone = statistics.median(ms or 0.0 for ms in self.samples.events[self.baseline.form.baseline])
        return Burst(
            calls=len(values),
            bound_ms=run.milliseconds,
            device_ms=_events(run),
            protocol_ms=overhead_ms,
            sustained=max(1.0, each_ms / alone) if alone else 1.0,
        )

    def _burst_of_one(self) -> Burst | None:
        """A timed call by itself, beside what the protocol takes in the reference's: enough where calls take so long
        that nothing hides in one.

        The middle one of all: the fastest may have met values that a candidate knows the answer to.
        """
        samples = self.samples
        mine = sorted(zip(samples.candidate, samples.events[CANDIDATE], strict=True), key=lambda pair: pair[0])
        theirs = zip(samples.baselines[EAGER], samples.events[EAGER], strict=True)
        bound_ms, device_ms = mine[len(mine) // 2]
        overheads = [bound - events for bound, events in theirs if events is not None]
        if device_ms is None or not overheads:
            return None
        found = Burst(calls=1, bound_ms=bound_ms, device_ms=device_ms, protocol_ms=statistics.median_low(overheads))
        return found if found.call_ms >= LONG_MS else None

    def _fastest_run(self, session: GpuSession, calls: int) -> tuple[list[Values], Timed]:
        """Of several, without the first, in which memory is still sought; none is needed after one that confirms."""
        self._run(session, calls)
        best = self._run(session, calls)
        for _ in range(BURSTS - 1):
            if _is_whole(session, best[1]) and self.samples.are_confirmed_by(self._confirmation(*best)):
                break
            best = min(best, self._run(session, calls), key=lambda run: run[1].milliseconds)
        return best

    def _run(self, session: GpuSession, calls: int) -> tuple[list[Values], Timed]:
        values = [self.fresh.of(self.number) for _ in range(calls)]
        session.expect(calls * self.baseline.needs.result)
        op = "burst" if self._operation == "call" else f"burst {self._operation}"
        return values, session.call(merged(values), self._settings.call_timeout_s, op)

    def _calls(self) -> int:
        """How many calls a burst has: enough to share the protocol's cost, as far as the device's memory goes.

        Fewer than `FEWEST_CALLS` are none: calls so large are long, and single ones tell as much.
        """
        bound, protocol = statistics.median(self.samples.candidate), self.samples.protocol[-1]
        wanted = math.ceil(BURST_MS / max(bound - protocol, BURST_MS / MOST_CALLS))
        needs = self.baseline.needs
        # The values and what is lent of them, for one process after the other; results, and the judge's copies.
        each = 4 * needs.inputs + 4 * needs.result + (needs.peak if needs.is_large else 0)
        fitting = int(MEMORY_SHARE * self._device.free_bytes() / each) if each else MOST_CALLS
        enough = next(size for size in SIZES if size >= wanted)
        return max((size for size in SIZES if size <= min(enough, fitting)), default=0)


def _is_whole(session: GpuSession, run: Timed) -> bool:
    """Whether the last run of a burst made each result once, and in memory of its own."""
    return not session.outputs_overlap and not (run.device is not None and run.device.made_twice)


def _called(side: ReferenceSession, values: Values) -> Timed:
    """A call whose result nobody reads."""
    timed = side.show(values)
    side.let_go()
    return _unread(timed)


def _unread(timed: Timed) -> Timed:
    return timed._replace(output=Values({"v": None}, ()))


def _events(timed: Timed) -> float | None:
    return timed.device.device_ms if timed.device else None
