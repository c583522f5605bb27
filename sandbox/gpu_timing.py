"""Timing on a GPU: all sides by one clock, on the same inputs, in balanced order, and checked by the judge's own clock.

Every side issues its calls ahead and gets its inputs dealt (`gpu_chain`): the time on the device is that of its
events, the host ahead and the L2 cache cold. What the candidate's process reports counts only as far as the judge's own
stamps support it. A program that waits for the device itself is timed call by call, as it is issued.
"""

import logging
import secrets
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from kernelwright.sandbox.calls.gpu_buffers import free_cached_memory, relieve, with_relief
from kernelwright.sandbox.calls.gpu_chain import (
    CannotIssueAhead,
    Chain,
    Link,
    Work,
    call_behind_a_spin,
    moves_data,
    rehearse,
    run_chain,
)
from kernelwright.sandbox.calls.gpu_device import CudaDevice
from kernelwright.sandbox.calls.gpu_reference import GpuReference
from kernelwright.sandbox.calls.gpu_session import CHANGED_INPUT, GpuSession
from kernelwright.sandbox.calls.reference import PATIENCE, Precision, ReferenceSession
from kernelwright.sandbox.calls.sessions import Misbehaved, Session, Timed
from kernelwright.sandbox.calls.timeouts import FirstCallTimeout
from kernelwright.sandbox.clocks import ClockSample, steady
from kernelwright.sandbox.correctness.checks import Call
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baseline_facts import PLACEBO
from kernelwright.sandbox.timing.baselines import OtherBaseline
from kernelwright.sandbox.timing.gpu_baselines import GpuBaselines
from kernelwright.sandbox.timing.paired import PairedSamples, Timing
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.gpu_timing import ClockCheck, DeviceRecord
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.statistics import KnownSpread, spread_of_launches
from kernelwright.sandbox.verdict.verdicts import EAGER, Measurement

LOG = logging.getLogger("kernelwright.sandbox.timing")
CANDIDATE = "candidate"
TURNS_MS = 0.5
"""If all calls of a chain but the last take this much longer, one stream waits for another, and the device serves
the judge late. Then each call has a chain of its own."""
CHAIN_MS = 400.0
"""Calls of one chain take no longer in all, unless it has but one."""
LINKS = 4
"""Timed calls of a chain; one before them is not timed, so that nobody's first call counts."""
ROUNDS = 2
"""Of a worker pair: in the second the sides come in reverse order."""
TRIES = 3
"""A round that does not count is replaced, until this many times the wanted number have been tried."""
QUEUE_MS = 8.0
"""A device's queue holds about four thousand launches. Calls that take longer to issue are no part of one chain."""
EMPTY_CALLS = 8
MEMORY_SHARE = 0.5
"""Of the device's free memory, for the inputs and results of a round."""
CLEARING_S = 0.3
"""The driver clears memory that large values have left, and slows calls meanwhile by a tenth."""
CALL_S, OWN_S = 10.0, 15.0
"""Wall seconds for a call of the candidate after its first, and for all of them together before it is timed by what
there is: others wait for the device."""


class DeviceSamples(PairedSamples):
    """Samples of all sides, in ms on the device; `candidate` as its process reports them."""

    def __init__(self, device: CudaDevice, known_spread: KnownSpread | None) -> None:
        super().__init__(known_spread)
        self._device = device
        self.latency_ms: dict[str, list[float]] = defaultdict(list)
        self.host_ms: dict[str, list[float]] = defaultdict(list)
        self.positions: dict[str, list[int]] = defaultdict(list)
        self.judge_ms: list[float] = []
        """The candidate's calls from stamp to stamp of the judge."""
        self.empty_ms: list[float] = []
        self.empty_gpu_ms: list[float] = []
        self.issues_ahead = True
        """Whether the candidate's calls can be issued ahead."""
        self.moves_data = False
        self.clocks: list[ClockSample | None] = []
        self.dropped: Counter[str] = Counter()
        self.switches: dict[str, dict[str, object]] = {}
        self.copies_outputs = False
        self.shipped_is_eager = False
        self.reported: list[float | None] = []
        """As in `candidate`; None where the candidate's process gave no time."""
        self.errors: dict[str, dict[str, float]] = {}
        self.less_accurate: tuple[str, ...] = ()

    def begin_again(self) -> None:
        """From now on the candidate's calls are not issued ahead: times by another clock do not count beside these."""
        self.issues_ahead = False
        for times in (self.candidate, self.reported, self.judge_ms, self.empty_ms, self.empty_gpu_ms, self.clocks):
            times.clear()
        for by_side in (self.baselines, self.host_ms, self.positions):
            by_side.clear()
        self.workers.clear()
        self.placebo.clear()

    @property
    def check(self) -> ClockCheck:
        """The candidate's times on the judge's own clock."""
        return ClockCheck(
            method="chain" if self.issues_ahead else "calls",
            candidate_ms=tuple(self.judge_ms),
            empty_ms=tuple(self.empty_ms),
            empty_gpu_ms=statistics.median(self.empty_gpu_ms) if self.empty_gpu_ms else 0.0,
            moves_data=self.moves_data,
        )

    def measurement(self, settings: JudgeSettings) -> Measurement:
        """The record: the candidate's times are those that it reports, raised to what the judge's clock supports."""
        check = self.check
        self.candidate = list(check.supported(self.reported))
        found = super().measurement(settings)
        facts = self._device.clocks.facts()
        device_ms = {name: tuple(times) for name, times in self.baselines.items()} | {CANDIDATE: tuple(self.reported)}
        if self.placebo:
            device_ms[PLACEBO] = tuple(again for again, _, _ in self.placebo)
        record = DeviceRecord(
            device=self._device.name,
            architecture=self._device.architecture,
            driver=facts.driver if facts else "",
            switches=self.switches,
            copies_outputs=self.copies_outputs,
            shipped_is_eager=self.shipped_is_eager,
            device_ms=device_ms,
            latency_ms={name: tuple(times) for name, times in self.latency_ms.items()},
            host_ms={name: tuple(times) for name, times in self.host_ms.items()},
            positions={name: tuple(places) for name, places in self.positions.items()},
            check=check,
            sm_mhz=tuple(sample.sm_mhz if sample else None for sample in self.clocks),
            dropped=dict(self.dropped),
            errors=self.errors,
        )
        found = found.model_copy(
            update={"clock": "gpu", "on_device": record, "less_accurate": self.less_accurate, "protocol_ms": ()}
        )
        sides = [found.times[side] for side in (CANDIDATE, found.closest.baseline)]
        return found.model_copy(update={"known_spread": spread_of_launches(self.known_spread, sides)})


class Side:
    """One program of a worker pair that is timed: the candidate, or a form of the reference."""

    def __init__(
        self, name: str, source: Session | ReferenceSession, what: str, precision: Precision | None = None
    ) -> None:
        """`precision`: the policy under which a reference is called, where that is not its own."""
        self.name, self._source, self._what, self._precision = name, source, what, precision
        self.links = 1 + LINKS
        """Calls that are issued ahead at a time; 0 where none can be."""
        self.is_candidate = isinstance(source, Session)

    @contextmanager
    def ready(self) -> Iterator[GpuSession]:
        """Within it the session, under this side's precision policy."""
        if isinstance(self._source, GpuReference):
            with self._source.on_device(self._precision) as session:
                yield session
        else:
            assert isinstance(self._source, GpuSession)
            yield self._source

    def bring_to_speed(self, values: Values, most: int, call_ms: float) -> list[float]:
        """Untimed calls, the last ones issued ahead, by which it is decided how many a chain has; latencies in ms."""
        most = max(1, min(most, int(CHAIN_MS / call_ms)))
        with self.ready() as session:
            try:
                latencies = rehearse(session, Work(self._what), values, most)
            except CannotIssueAhead:
                self.links = 0
                return []
            self.links = max(1, min(most, int(QUEUE_MS / session.host_ms))) if session.host_ms else most
            return latencies[1:]

    def chains(self, values: Sequence[Values], earlier: Values, keep: bool) -> Iterator[Chain]:
        """Chains over all these values, each without the call on earlier values that comes before, if any fits."""
        lead = [earlier] if self.links > 1 else []
        each = max(1, self.links - len(lead))
        for start in range(0, len(values), each):
            with self.ready() as session:
                chain = run_chain(session, Work(self._what), [*lead, *values[start : start + each]], earlier, keep)
            yield chain._replace(links=chain.links[len(lead) :])


class DeviceTiming(Timing):
    """Times one candidate on the device; hold the device meanwhile."""

    samples: DeviceSamples
    _baselines: GpuBaselines

    def __init__(
        self, baselines: GpuBaselines, settings: JudgeSettings, device: CudaDevice, best_speedup: float | None = None
    ) -> None:
        super().__init__(baselines, settings, best_speedup)
        self._device = device
        self.samples = DeviceSamples(device, self.samples.known_spread)
        self._coin = secrets.randbelow(720)
        """Which side comes first in the first round, and which of two processes of the baseline is the placebo."""
        self._rounds = 0
        self._clocks: ClockSample | None = None
        """As they were behind the candidate's last calls."""
        self._result_sizes: list[int] = []
        self._own_s = 0.0
        self._earlier = Values({}, ())
        """Values that every side has seen already: for calls that are not timed."""
        self._call_ms = (1.0, 1.0)
        """Times of a call of the candidate and of the baseline in the warm-up, by the judge's clock."""

    @property
    def baseline(self) -> GpuReference:
        return self._baselines.eager(self.number)

    def warm_up(self, session: Session) -> None:
        """Check calls of the candidate; the first one, in which it may compile or tune, has the build's limit."""
        if self._retired is not None:  # it might still be heard on the device
            self._retired.result()
        super().warm_up(session)

    def _warm_beside(self, values: Values, result_bytes: int) -> None:
        """Have the other sides' processes started; all are brought to their speed alike, in `measure`."""
        self._sides_beside()

    def _settle(self, session: Session, values: Values, took_ms: tuple[float, float]) -> None:
        """All sides are brought to their speed alike, in `measure`."""
        self._call_ms = took_ms

    def call(self, values: Values) -> Timed:
        session = self.session
        assert isinstance(session, GpuSession)
        start, is_first = time.monotonic(), not session.is_called
        call_s, build_s = self._call_limit_s(), self._settings.build_timeout_s
        limit = FirstCallTimeout(call_s, build_s, self._device.clocks.is_busy) if is_first else call_s
        try:
            return session.call(values, limit, self.operation)
        finally:
            self._own_s += 0.0 if is_first else time.monotonic() - start

    def _call_limit_s(self) -> float:
        return min(CALL_S, self._settings.call_timeout_s)

    def retire(self, session: Session) -> None:
        """End a worker whose part is done while the next one is loaded, unless that needs its memory."""
        if self._baselines.first.needs.is_large:
            session.close()
        else:
            self._retired = self._beside.submit(session.close)

    def measure(self, session: Session) -> None:
        assert isinstance(session, GpuSession)
        start, good, samples = time.monotonic(), 0, self.samples
        sides, calls = self._all_sides(session), self._calls()
        self._earlier = values = self.fresh.of(self.number)
        for side in sides:
            self._bring_to_speed(side, values, calls)
        for _ in range(TRIES * ROUNDS):
            good += self._round(session, sides, calls)
            if good == ROUNDS or (self._own_s > OWN_S and samples.candidate):
                break
        self._look_at_nothing(calls)
        samples.switches |= {CANDIDATE: session.switches, EAGER: self.baseline.switches}
        for name, reference, precision in self._sides_beside():
            assert isinstance(reference, GpuReference)
            samples.switches[name] = (
                reference.switches_under.get(precision, reference.switches) if precision else reference.switches
            )
        samples.copies_outputs = session.copies_outputs
        if self.baseline.needs.is_large:
            free_cached_memory()
        self._spent_s += time.monotonic() - start
        if self.number == 0 and self._sides_beside():
            samples.errors, samples.less_accurate = self._baselines.accuracy()
        self.pairs += 1

    @property
    def is_enough(self) -> bool:
        """As elsewhere; where hardly any round counts, or the candidate takes too long, it ends with what there is."""
        if self.pairs < TRIES * self._settings.worker_pairs and self._own_s <= OWN_S:
            return bool(self.samples.candidate) and super().is_enough
        if not self.samples.candidate:
            why = ", ".join(f"{reason} ({count})" for reason, count in self.samples.dropped.items())
            raise MachineError(f"no timed call on the device counts: {why}; end what else uses it, or let it cool")
        return True

    def _all_sides(self, session: GpuSession) -> list[Side]:
        """All that is timed beside each other, the candidate first."""
        what, samples = self.operation, self.samples
        sides = [Side(CANDIDATE, session, what), Side(EAGER, self.baseline, what)]
        other = self._baselines.placebo(self.number)
        sides += [Side(PLACEBO, other, what)] if other else []
        samples.shipped_is_eager = "shipped" not in self._baselines.policies
        return sides + [Side(name, reference, what, precision) for name, reference, precision in self._sides_beside()]

    def _sides_beside(self) -> list[OtherBaseline]:
        """The baselines beside strict eager; a screen has none."""
        return [] if self._settings.effort == "screen" else self._baselines.others(self.number)

    def _calls(self) -> int:
        """Calls of a round on values of their own, as far as memory goes; one more is not timed."""
        needs = self.baseline.needs
        each = needs.inputs + 3 * needs.result
        fitting = int(MEMORY_SHARE * self._device.free_bytes() / each) - 1 if each else LINKS
        return max(1, min(LINKS, fitting))

    def _bring_to_speed(self, side: Side, values: Values, calls: int) -> None:
        start = time.monotonic()
        if self._device.chain_obstacle or (side.is_candidate and not self.samples.issues_ahead):
            side.links = 0
        else:
            call_ms = self._call_ms[0 if side.is_candidate else 1]
            self.samples.latency_ms[side.name] += side.bring_to_speed(values, 1 + calls, call_ms)
        if side.is_candidate:
            self._own_s += time.monotonic() - start
            self._note_way(side)

    def _note_way(self, side: Side) -> None:
        """Once the candidate's calls cannot be issued ahead, single calls alone count."""
        if self.samples.issues_ahead and not side.links:
            self.samples.begin_again()

    def _round(self, session: GpuSession, sides: list[Side], calls: int) -> bool:
        """All sides on the same values, each result of the candidate checked; whether the times count."""
        drawn = [self.fresh.draw(self.number) for _ in range(calls)]
        values = [one for _, one in drawn]
        if sum(one.size for one in values) > 2**31:
            time.sleep(CLEARING_S)
        order = self._order(sides)
        links: dict[str, list[Link]] = {}
        faults: list[str] = []
        for side in order:
            links[side.name] = self._timed(side, values, faults)
        session.refuse_activity_while_stopped()
        self._rounds += 1
        counted = self._checked(drawn, links)
        self._earlier = values[0]
        if faults:
            self.samples.dropped[faults[0]] += 1
            return False
        self._keep(links, counted, {side.name: place for place, side in enumerate(order)})
        return bool(counted)

    def _order(self, sides: list[Side]) -> list[Side]:
        """Rotated by one place every other round, and reversed in between: over rounds each is as early as late."""
        first = (self._coin + self._rounds // 2) % len(sides)
        order = sides[first:] + sides[:first]
        return order[::-1] if self._rounds % 2 else order

    def _timed(self, side: Side, values: Sequence[Values], faults: list[str]) -> list[Link]:
        """A side's calls on these values, ahead where that can be."""
        keep, start = side.name in (CANDIDATE, EAGER), time.monotonic()
        found: list[Link] = []
        while side.links and not found:
            try:
                for chain in side.chains(values, self._earlier, keep):
                    found += chain.links
                    faults += ([] if chain.was_idle else [BUSY]) + self._slow(chain.clocks)
                    if side.is_candidate:
                        self._clocks = chain.clocks
                        self._result_sizes = min(self._result_sizes or chain.sizes, chain.sizes, key=sum)
                        if not chain.inputs_kept:
                            raise Misbehaved(CHANGED_INPUT)
            except CannotIssueAhead:  # results may take each other's place
                side.links = 1 if side.links > 1 else 0
                if found:  # the candidate has met some of these values
                    found += [self._timed_alone(side, one, keep, faults) for one in values[len(found) :]]
                    faults.append("calls could not be issued ahead any more")
            took_ms = [link.judge_ms for link in found if link.judge_ms is not None]
            if side.links > 1 and statistics.median(took_ms) - min(took_ms) > TURNS_MS:
                side.links = 1
                faults.append("a stream of a program waited for another one")
        if side.is_candidate:
            self._own_s += time.monotonic() - start
            self._note_way(side)
        if not found:
            found = [self._timed_alone(side, one, keep, faults) for one in values]
        return found

    def _timed_alone(self, side: Side, values: Values, keep: bool, faults: list[str]) -> Link:
        """One call from an idle device by the judge's clock, and one on the same input by the events of its process."""
        self._device.wakes = True
        try:
            with side.ready() as session, nullcontext() if side.is_candidate else _owned(session, keep) as owned:
                start = time.monotonic()
                limit_s = self._call_limit_s() if side.is_candidate else PATIENCE * self._settings.call_timeout_s
                if session.needs_warming:  # it has given its memory back
                    session.call_ms(self._earlier, limit_s, self.operation)
                timed = session.call(values, limit_s, self.operation, in_place=not side.is_candidate)
                output = owned(timed.output) if owned else timed.output
                session.release_result()
                device_ms = call_behind_a_spin(session, Work(self.operation), values)
                self._own_s += time.monotonic() - start if side.is_candidate else 0.0
        finally:
            self._device.wakes = False
        witnessed = timed.device
        assert witnessed is not None
        faults += [] if witnessed.prepared.was_idle and not witnessed.made_twice else [BUSY]
        faults += self._slow(witnessed.clocks)
        self._clocks = witnessed.clocks if side.is_candidate else self._clocks
        return Link(device_ms or witnessed.device_ms, timed.milliseconds, 0.0, output if keep else None)

    def _slow(self, clocks: ClockSample | None) -> list[str]:
        if steady([*self.samples.clocks, clocks])[-1]:
            return []
        return ["a clock was low or the device slowed down by heat"]

    def _checked(self, drawn: Sequence[tuple[str, Values]], links: dict[str, list[Link]]) -> list[int]:
        """Check the candidate's results; the numbers of the calls that count."""
        counted = []
        for number, (family, values) in enumerate(drawn):
            mine, theirs = (_as_timed(links[name][number]) for name in (CANDIDATE, EAGER))
            if self.excludes(family, theirs, values):
                self.samples.dropped["the values lie outside of what the problem is defined for"] += 1
                continue
            if self.has("timed_check"):
                self.run("each call", Call(family, values, mine, theirs))
            counted.append(number)
        self.baseline.release_result()
        if not self.samples.candidate and counted:
            kept = [(drawn[number][1], output) for number in counted if (output := links[EAGER][number].output)]
            self.samples.moves_data = with_relief(lambda: moves_data(*zip(*kept, strict=True)))
        return counted

    def _keep(self, links: dict[str, list[Link]], counted: Sequence[int], places: dict[str, int]) -> None:
        """Note the times of one round. Two processes of the baseline alternate as eager and as its placebo."""
        samples = self.samples
        swapped = PLACEBO in links and (self._coin + self._rounds) % 2 == 1
        eager, again = (PLACEBO, EAGER) if swapped else (EAGER, PLACEBO)
        for number in counted:
            mine = links[CANDIDATE][number]
            samples.candidate.append(_trusted(mine))
            samples.reported.append(mine.device_ms)
            samples.judge_ms += [] if mine.judge_ms is None else [mine.judge_ms]
            samples.workers.append(self.number)
            samples.clocks.append(self._clocks)
            for name, found in links.items():
                label = {eager: EAGER, again: PLACEBO}.get(name, name)
                if label not in (CANDIDATE, PLACEBO):
                    samples.baselines[label].append(_trusted(found[number]))
                if found[number].host_ms:
                    samples.host_ms[label].append(found[number].host_ms)
                samples.positions[label].append(places[name])
            if again in links:
                pair = _trusted(links[again][number]), _trusted(links[eager][number])
                samples.placebo.append((*pair, self.number))

    def _look_at_nothing(self, calls: int) -> None:
        """Time calls that compute next to nothing, by the judge's clock and by their events, in chains of so many.

        Where memory is too short even for one of them, the candidate's times in chains have nothing to be held against.
        """
        samples = self.samples
        with self.baseline.on_device() as session:
            if samples.issues_ahead and not any(self._has_timed_nothing(session, each) for each in (calls, 1)):
                samples.begin_again()
                self._own_s = 0.0  # its times so far count for nothing
            if not samples.issues_ahead:
                self._device.wakes = True
                try:
                    samples.empty_ms = [session.nothing_ms() for _ in range(EMPTY_CALLS)]
                finally:
                    self._device.wakes = False

    def _has_timed_nothing(self, session: GpuSession, calls: int) -> bool:
        samples, work, values = self.samples, Work("touch", self._result_sizes), [self._earlier] * (1 + calls)
        taken: list[Link] = []
        try:
            rehearse(session, work, self._earlier, len(values))
            while len(taken) < EMPTY_CALLS:
                taken += run_chain(session, work, values, self._earlier, True).links[1:]
        except CannotIssueAhead as error:
            LOG.info("calls that compute nothing: %s", error)
            relieve()
            return False
        samples.empty_ms += [link.judge_ms for link in taken if link.judge_ms is not None]
        samples.empty_gpu_ms += [_trusted(link) for link in taken]
        return True


BUSY = "the device was not idle before the call, or memory was missing in it"


@contextmanager
def _owned(session: GpuSession, keep: bool) -> Iterator[Callable[[Values], Values]]:
    """Let a trusted child's result be read where it lies until the end; a copy of it lasts."""
    try:
        yield lambda output: with_relief(output.owned) if keep else output
    finally:
        session.release_result()


def _as_timed(link: Link) -> Timed:
    assert link.output is not None
    return Timed(link.output, _trusted(link), 0.0)


def _trusted(link: Link) -> float:
    """The time of a call in ms; of a candidate it is a mere word."""
    return link.device_ms or link.judge_ms or 0.0
