"""Calls that a child issues ahead and the judge deals inputs to, one after another, by its own clock.

The child puts each call behind a wait for the judge's flag, and is stopped. For each call the judge's stream waits
until the one before is done, copies its result, poisons its place, writes the next input, flushes the L2 cache by
reads, stamps an event and writes the next flag. So launches are hidden, nothing can overlap or start early, and the
time from stamp to stamp rests on no word of the child. A done flag that comes too early shows poison. Inputs are
written by a kernel: while it runs no kernel of another process does. See docs/decisions/gpu-clock.md.
"""

import ctypes
import math
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kernelwright.sandbox.calls.buffers import Shown, poison, seen
from kernelwright.sandbox.calls.memory_relief import with_relief
from kernelwright.sandbox.jail.children import ChildLate
from kernelwright.sandbox.machine.clocks import ClockSample
from kernelwright.sandbox.tensors.merging import alone
from kernelwright.sandbox.tensors.process_memory import MemoryReadError
from kernelwright.sandbox.tensors.trees import is_sound
from kernelwright.sandbox.tensors.values import DeviceBytes, RawTensor, Values
from kernelwright_child.gpu import driver, sharing

if TYPE_CHECKING:
    from kernelwright.sandbox.calls.device import CudaDevice
    from kernelwright.sandbox.calls.gpu_session import GpuSession

FLAG_BYTES, DONE_OFFSET = 4096, 128
"""The child finds the word that says which calls are done so far behind the one that says which inputs are there."""
ISSUE_S, ISSUE_FACTOR = 0.25, 10
"""A child that has not issued its calls after this time, or so many times what they took to issue before, is waiting
for the device: its calls cannot be issued ahead."""
RUN_S = 10.0
"""Wall time for the device to run all calls of a chain."""
POLL_S = 5e-5
LEAST_PASSES, MOST_PASSES, SETTLED = 2, 8, 0.03
"""A program is at its speed once two passes of calls differ by this share at most."""
SPIN, MOST_SPIN_MS = 2.0, 20.0
"""How long the device is kept busy ahead of a single call, as a multiple of what that took to issue."""
LONGEST_S = 0.5
"""No further pass begins after this time."""


class CannotIssueAhead(Exception):
    """The calls wait for the device themselves, or give results that the judge cannot map; the text says which."""


class Work(NamedTuple):
    """Whatever a child is asked to do ahead."""

    what: str
    """`call`, `backward`, or `touch`, which only reads the inputs and fills results."""
    sizes: Sequence[int] = ()
    """Bytes of each result of `touch`."""

    def message(self, flags: "Flags", values: Values) -> dict[str, Any]:
        """The question, without the seeds of its calls."""
        return {
            "op": "ahead",
            "of": self.what,
            "base": flags.last,
            "arguments": values.tree,
            "bytes": list(self.sizes),
        }


class Link(NamedTuple):
    """One call of a chain."""

    device_ms: float | None
    """By the device's events, as the child reports them."""
    judge_ms: float | None
    """From the judge's stamp before the call to the one behind it: the call, the hand-over, and what the judge does."""
    host_ms: float
    """What the child says that the call took to issue."""
    output: Values | None
    """A copy of the result; None where nobody wants it."""


class Chain(NamedTuple):
    """All calls of a chain."""

    links: list[Link]
    was_idle: bool
    """Whether nothing else ran on the device before it."""
    clocks: ClockSample | None
    inputs_kept: bool
    """Whether every call left its inputs as they were."""
    sizes: list[int]
    """Bytes of the results of a call where the child has them, from the first to the last element of each."""


class Flags:
    """Two words of device memory that judge and child share. Close it."""

    def __init__(self, ordinal: int) -> None:
        self._shared = sharing.Shared(ordinal, FLAG_BYTES)
        self.bytes, self.begun = self._shared.bytes, self._shared.address
        self.done = self.begun + DONE_OFFSET
        driver.call("cuMemsetD32_v2", ctypes.c_uint64(self.begun), ctypes.c_uint(0), ctypes.c_size_t(FLAG_BYTES // 4))
        self.fd = self._shared.export()
        self.last = 0
        """Number of the last call that was asked for."""

    def close(self) -> None:
        self._shared.close()


class Dealer:
    """What the judge needs to deal on one device; made where torch is loaded already."""

    def __init__(self, device: "CudaDevice", flush_address: int, flush_bytes: int) -> None:
        self.stream = device.stream
        self._torch_stream = torch.cuda.ExternalStream(self.stream.handle)  # type: ignore[no-untyped-call]
        self._flush = seen(flush_address, flush_bytes).view(torch.int64)
        self._sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self._rescue = driver.Stream()
        self._gate = driver.Pinned(64)
        self._word = ctypes.cast(self._gate.address, ctypes.POINTER(ctypes.c_uint32))
        self._word[0] = 0
        self._turns = 0
        self._stamps: list[driver.CudaEvent] = []
        self._is_loaded = False

    def load(self) -> None:
        """Run once every kernel of a turn: one that is first loaded behind a wait would hang."""
        if self._is_loaded:
            return
        here = torch.zeros(64, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(self._torch_stream):
            for count in (1, 4, 64):
                copy_by_kernel(here[:count], here[:count].clone())
                _compare(here[:count], here[:count], torch.empty(64, dtype=torch.bool, device="cuda"), here[:1].bool())
            torch.sum(self._flush, dim=0, out=self._sink)
        driver.synchronize()
        self._is_loaded = True

    def deal(self, flags: Flags, places: Sequence[torch.Tensor], turns: "list[Turn]") -> list[float] | None:
        """Run a chain whose calls are issued; ms from stamp to stamp. None where it did not end within `RUN_S`."""
        first = flags.last - (len(turns) - 1) + 1
        while len(self._stamps) < len(turns):
            self._stamps.append(driver.CudaEvent())
        self._turns += 1
        driver.wait_value(self.stream.handle, self._gate.address, self._turns)
        try:
            with torch.cuda.stream(self._torch_stream):
                for number, (turn, stamp) in enumerate(zip(turns, self._stamps, strict=False)):
                    if number:
                        driver.wait_value(self.stream.handle, flags.done, first + number - 1)
                    turn.take(self.stream)
                    for place, raw in zip(places, turn.next.tensors, strict=False):
                        assert isinstance(raw.data, DeviceBytes)
                        copy_by_kernel(place, raw.data.tensor)
                    torch.sum(self._flush, dim=0, out=self._sink)
                    self.stream.record(stamp)
                    if number < len(turns) - 1:
                        driver.write_value(self.stream.handle, flags.begun, first + number)
        finally:
            self._word[0] = self._turns
        limit = time.monotonic() + RUN_S
        while not self.stream.is_done:
            if time.monotonic() > limit:
                self.release(flags, flags.begun, flags.done)
                return None
            time.sleep(POLL_S)
        return [late.since(early) for early, late in zip(self._stamps, self._stamps[1 : len(turns)], strict=False)]

    def release(self, flags: Flags, *words: int) -> None:
        """Let everything pass that waits for these words, or else for inputs, from another stream than the chain's."""
        for word in words or (flags.begun,):
            driver.write_value(self._rescue.handle, word, flags.last)
        self._rescue.wait()

    def close(self) -> None:
        for stamp in self._stamps:
            stamp.close()
        self._rescue.close()
        self._gate.close()


class Turn:
    """What the judge does between two calls: take the result of the one before, have the next input ready."""

    def __init__(self, following: Values, before: Values | None = None, shown: Sequence[Shown] = ()) -> None:
        """`before`: the inputs of the call before, where they are compared with what it left of them."""
        self.next, self._before, self._shown = following, before, shown
        self.own = [torch.empty(output.bytes, dtype=torch.uint8, device="cuda") for output in shown]
        self._seen = [seen(output.address, output.bytes) for output in shown]
        self._same: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def watch(self, places: Sequence[torch.Tensor]) -> None:
        """Compare what lies in these places with the inputs of the call before."""
        for place, raw in zip(places, self._before.tensors if self._before else (), strict=False):
            assert isinstance(raw.data, DeviceBytes)
            room = torch.empty(place.numel() // 8 + 8, dtype=torch.bool, device="cuda")
            self._same.append((place, raw.data.tensor, room, torch.ones(2, dtype=torch.bool, device="cuda")))

    def take(self, stream: driver.Stream) -> None:
        """Issue it all but the next input."""
        for place, data, room, said in self._same:
            _compare(place, data, room, said)
        for output, there, own in zip(self._shown, self._seen, self.own, strict=True):
            copy_by_kernel(own, there)
            poison(output, stream)

    @property
    def inputs_kept(self) -> bool:
        """Whether the inputs were the same; once all has run."""
        return all(bool(said.all()) for *_, said in self._same)

    def values(self) -> tuple[RawTensor, ...]:
        """The results that were taken, made contiguous."""
        found = []
        for output, own in zip(self._shown, self.own, strict=True):
            if not output.bytes:
                found.append(RawTensor(output.dtype, output.shape, DeviceBytes(own)))
                continue
            whole = own.view(getattr(torch, output.dtype)).as_strided(output.shape, output.stride)
            found.append(RawTensor.laid(whole, DeviceBytes(own)))
        return tuple(found)


def run_chain(session: "GpuSession", work: Work, values: Sequence[Values], before: Values, keep: bool) -> Chain:
    """Have a child work on each of these inputs in turn; until the first is dealt it sees those of `before`.

    With `keep` results are copied. Raises `CannotIssueAhead`, and what a call raises.
    """
    device, dealer, flags, lent = session.device, session.device.dealer, session.flags(), session.inputs
    assert lent is not None
    if session.is_cold:  # a call behind a wait could get no memory
        rehearse(session, work, before, len(values))
    dealer.load()
    prepared = session.quiet(before)
    message = work.message(flags, values[0]) | {"seeds": [one.seed for one in values], "show": keep}
    flags.last += len(values)
    answer = session.issue(message, session.issue_limit_s(len(values)))
    if answer is None or "error" in answer:
        session.drain()
        raise CannotIssueAhead("it waits for the device itself" if answer is None else str(answer.get("error"))[:200])
    shown = _shown_by_link(session, answer, len(values)) if keep else [[] for _ in values]
    watches = session.watches_inputs

    def made() -> list[Turn]:
        turns = [Turn(values[0])]
        for number, outputs in enumerate(shown):
            following = values[min(number + 1, len(values) - 1)]
            turns.append(Turn(following, values[number] if watches else None, outputs))
            turns[-1].watch(lent.places)
        return turns

    try:
        turns = with_relief(made)
        driver.synchronize()
        judge_ms = dealer.deal(flags, lent.places, turns)
    except BaseException:
        session.drain()
        raise
    if judge_ms is None:
        session.close()
        raise ChildLate
    clocks = device.clocks.sample()
    device_ms = _numbers(session.issue({"op": "times"}, RUN_S), "device_ms", len(values))
    host_ms = _numbers(answer, "host_ms", len(values))
    session.look_after()
    outputs = _outputs(answer, turns) if keep else [None] * len(values)
    links = [
        Link(said or None, judge, host or 0.0, output)
        for said, judge, host, output in zip(device_ms, judge_ms, host_ms, outputs, strict=True)
    ]
    kept = all(turn.inputs_kept for turn in turns)
    return Chain(links, prepared.was_idle, clocks, kept, [output.bytes for output in shown[-1]])


def rehearse(session: "GpuSession", work: Work, values: Values, calls: int) -> list[float]:
    """Call on one input, each call waited for, then as many issued ahead; latencies of the former in ms.

    Memory and kernels are there from then on, which a call behind the judge's flag could not get. Calls are issued
    ahead until two passes take the same time on the device; `GpuSession.host_ms` is what one takes to issue.
    """
    flags = session.flags()
    session.show(values)
    message = work.message(flags, values) | {"seeds": [values.seed] * calls}
    flags.last += calls
    driver.write_value(session.device.stream.handle, flags.begun, flags.last)
    session.device.stream.wait()
    latencies: list[float | None] = []
    before, start = math.inf, time.monotonic()
    for number in range(MOST_PASSES):
        answer = session.issue(message | {"waits": number == 0}, RUN_S)
        if answer is None:
            raise ChildLate
        if "error" in answer:
            session.issue({"op": "times"}, RUN_S)
            raise CannotIssueAhead(str(answer["error"])[:200])
        session.host_ms = max(ms or 0.0 for ms in _numbers(answer, "host_ms", calls))
        latencies += _numbers(answer, "latency_ms", calls) if number == 0 else []
        answer = session.issue({"op": "times"}, RUN_S)
        if answer is None:
            raise ChildLate
        took = statistics.median(ms or 0.0 for ms in _numbers(answer, "device_ms", calls))
        session.open_ms = took
        is_settled = number >= LEAST_PASSES and abs(took - before) <= SETTLED * before
        if is_settled or time.monotonic() - start > LONGEST_S:
            break
        before = took if number else math.inf
    session.look_after()
    return [ms for ms in latencies if ms is not None]


def call_behind_a_spin(session: "GpuSession", work: Work, values: Values) -> float | None:
    """Time of one call in ms by the child's events, issued while a kernel of its own keeps the device busy."""
    flags = session.flags()
    session.quiet(values)
    message = work.message(flags, values) | {"seeds": [values.seed]}
    flags.last += 1
    driver.write_value(session.device.stream.handle, flags.begun, flags.last)
    session.device.stream.wait()
    answer = session.issue(message | {"spin_ms": min(MOST_SPIN_MS, SPIN * session.host_ms)}, RUN_S)
    times = session.issue({"op": "times"}, RUN_S) if answer is not None else None
    if answer is None or times is None:
        session.close()
        raise ChildLate
    session.look_after()
    return None if "error" in answer else _numbers(times, "device_ms", 1)[0]


def copy_by_kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy bytes by a kernel on the current stream, never by a copy engine."""
    for one, other in _words(target, source):
        torch.bitwise_xor(other, 0, out=one)


def _compare(one: torch.Tensor, other: torch.Tensor, room: torch.Tensor, said: torch.Tensor) -> None:
    """Write whether two tensors of bytes are the same, for the body and the last bytes, without a wait."""
    for number, (mine, theirs) in enumerate(_words(one, other)):
        noted = room[: mine.numel()]
        torch.eq(mine, theirs, out=noted)
        torch.all(noted, dim=0, out=said[min(number, len(said) - 1)])


def _words(one: torch.Tensor, other: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Both as words of 8 bytes where they lie on such, and the rest as bytes."""
    even = all(tensor.data_ptr() % 8 == 0 and tensor.storage_offset() % 8 == 0 for tensor in (one, other))
    body = one.numel() // 8 * 8 if even else 0
    pairs = [(one[:body].view(torch.int64), other[:body].view(torch.int64))] if body else []
    return pairs + ([(one[body:], other[body:])] if body < one.numel() else [])


def _shown_by_link(session: "GpuSession", answer: dict[str, Any], count: int) -> list[list[Shown]]:
    """Where the results of each call lie."""
    tree, claims = answer.get("tree"), answer.get("tensors")
    if not isinstance(tree, dict) or not isinstance(claims, list) or not is_sound(tree, len(claims)):
        raise MemoryReadError("the child described its results in a form that can not be read")
    shown = session.find(claims, count)
    per_call, rest = divmod(len(shown), count)
    if rest or not isinstance(tree.get("l"), list) or len(tree["l"]) != count:
        raise MemoryReadError("calls on inputs of one form gave results of several")
    return [shown[number * per_call : (number + 1) * per_call] for number in range(count)]


def _outputs(answer: dict[str, Any], turns: list[Turn]) -> list[Values | None]:
    made = Values(answer["tree"], tuple(raw for turn in turns for raw in turn.values()))
    return [alone(tree, made) for tree in answer["tree"]["l"]]


def _numbers(answer: dict[str, Any] | None, key: str, count: int) -> list[float | None]:
    """Numbers of a child's answer; None for each that is none."""
    said = (answer or {}).get(key)
    found = said if isinstance(said, list) and len(said) == count else [None] * count
    return [float(one) if isinstance(one, int | float) and math.isfinite(one) and one > 0 else None for one in found]
