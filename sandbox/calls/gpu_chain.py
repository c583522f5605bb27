"""Chains of calls that a child issues ahead, with inputs that the judge hands over one by one; see `gpu_device`.

Of results that only move inputs a chain tells less: `moves_data` finds them, see docs/decisions/gpu-clock.md.
"""

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernelwright.sandbox.calls.gpu_buffers import Shown, relieve, with_relief
from kernelwright.sandbox.calls.gpu_device import Flags, Handover
from kernelwright.sandbox.calls.gpu_session import GpuSession
from kernelwright.sandbox.clocks import ClockSample
from kernelwright.sandbox.jail.process import ChildLate
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, alone, described, marked, with_changed
from kernelwright_child import driver

LEAST_PASSES, MOST_PASSES, SETTLED = 2, 8, 0.03
"""Passes of calls until a program is at its speed: two that differ by at most this share."""
SPIN, MOST_SPIN_MS = 2.0, 20.0
"""Busy time of the device ahead of a call, as a multiple of the time to issue it."""
LONGEST_S = 0.5
"""Time after which no further pass starts."""
SAMPLED, MOVED_SHARE = 4096, 0.1
"""Elements of a result that are looked up among the inputs, and how many of them may be there every time."""
ROW_BYTES, MULTIPLIER = 16, 0x9E3779B97F4A7C15 - 2**64
"""Of a row that is looked for anywhere; and what words are joined by, odd so that no bit is lost."""
PART = 2**24
"""Elements of an input that are looked through at a time: their places take 128 MiB."""


class CannotIssueAhead(Exception):
    """The calls wait for the device themselves, or give results that the judge cannot map, as the text says."""


class Work(NamedTuple):
    """Work that a child issues ahead."""

    what: str
    """`call`, `backward`, or `touch`, which only reads the inputs and fills results."""
    sizes: Sequence[int] = ()
    """Bytes of each result of `touch`."""

    def message(self, flags: Flags, values: Values) -> dict[str, Any]:
        question = {"op": "ahead", "of": self.what, "base": flags.last}
        return question | {"arguments": values.tree, "bytes": list(self.sizes)}


class Link(NamedTuple):
    device_ms: float | None
    """By the device's events, as the child reports them."""
    judge_ms: float | None
    """Time between the judge's events around the call, the handover and the judge's work included."""
    host_ms: float
    """Time to issue the call, as the child reports it."""
    output: Values | None
    """A copy of the result; None where it is not needed."""


class Chain(NamedTuple):
    links: list[Link]
    was_idle: bool
    clocks: ClockSample | None
    inputs_kept: bool
    """Whether every call left its inputs as they were."""
    sizes: list[int]
    """Bytes from the first to the last element of each result in the child, for the smallest call."""


def run_chain(session: GpuSession, work: Work, values: Sequence[Values], before: Values, keep: bool) -> Chain:
    """Run a chain of calls on these inputs; until the first handover the child sees the inputs of `before`.

    With `keep` results are copied. Raises `CannotIssueAhead`, and the errors of a call.
    """
    flags = session.flags()
    if session.needs_warming:  # a call behind a wait could get no memory
        rehearse(session, work, before, len(values))
    session.device.dealer.load()
    prepared = session.prepare(before)
    message = work.message(flags, values[0]) | {"seeds": [one.seed for one in values], "show": keep}
    flags.last += len(values)
    try:
        with session.keeps_memory():
            return _run_issued(session, values, message, prepared.was_idle)
    except torch.OutOfMemoryError:
        session.free_memory()  # what its results take
        raise CannotIssueAhead("there is no memory for its results") from None


def _run_issued(session: GpuSession, values: Sequence[Values], message: dict[str, Any], was_idle: bool) -> Chain:
    """Issue the calls, hand over one input after another, and take the results that the message asks for."""
    device, dealer, flags, shared = session.device, session.device.dealer, session.flags(), session.inputs
    assert shared is not None
    keep = message["show"]
    answer = session.issue(message, session.issue_limit_s(len(values)))
    if answer is None or "error" in answer:
        session.drain()
        raise CannotIssueAhead("it waits for the device itself" if answer is None else str(answer.get("error"))[:200])
    shown = _shown_by_link(session, answer, len(values)) if keep else [[] for _ in values]
    watches, changed = session.watches_inputs, shared.shown(session.changes) if keep else []

    def made() -> list[Handover]:
        handovers = [Handover(values[0], None, [], [])]
        sizes = [place.numel() // 8 + 8 for place in shared.places if watches]
        rooms = [torch.empty(size, dtype=torch.bool, device="cuda") for size in sizes]
        for number, outputs in enumerate(shown):
            following = values[min(number + 1, len(values) - 1)]
            old = handovers[-1].own if message["of"] == "touch" else []
            handovers.append(Handover(following, values[number] if watches else None, [*outputs, *changed], old))
            handovers[-1].watch(shared.places, rooms, session.changes)
        return handovers

    try:
        handovers = with_relief(made)
        driver.synchronize()
        judge_ms = dealer.deal(flags, shared.places, handovers)
    except BaseException:
        session.drain()
        raise
    if judge_ms is None:
        session.close()
        raise ChildLate
    clocks = device.clocks.sample()
    device_ms = _numbers(session.issue_and_wait({"op": "times"}), "device_ms", len(values))
    host_ms = _numbers(answer, "host_ms", len(values))
    session.refuse_leftovers()
    outputs: list[Values | None] = [None] * len(values)
    if keep:
        found = _outputs(answer, handovers[1:], session.changes)
        outputs = [marked(output, places, message["of"]) for output, places in zip(found, shown, strict=True)]
    links = [
        Link(said or None, judge, host or 0.0, output)
        for said, judge, host, output in zip(device_ms, judge_ms, host_ms, outputs, strict=True)
    ]
    kept = all(handover.inputs_kept for handover in handovers)
    sizes = min(([output.bytes for output in outputs] for outputs in shown), key=sum)
    return Chain(links, was_idle, clocks, kept, sizes)


def rehearse(session: GpuSession, work: Work, values: Values, calls: int) -> list[float]:
    """Call on one input with a wait for each call, then as often ahead; return the latencies of the former in ms.

    Afterwards memory and kernels are loaded, which a call behind the judge's flag could not do. Calls are issued ahead
    until two passes take the same time on the device; `GpuSession.host_ms` is the time to issue one.
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
        answer = session.issue_and_wait(message | {"waits": number == 0})
        if answer.get("memory") is True:
            relieve()
            answer = session.issue_and_wait(message | {"waits": number == 0})
        times = session.issue_and_wait({"op": "times"})
        if "error" in answer:
            raise CannotIssueAhead(str(answer["error"])[:200])
        session.host_ms = max(ms or 0.0 for ms in _numbers(answer, "host_ms", calls))
        latencies += _numbers(answer, "latency_ms", calls) if number == 0 else []
        took = statistics.median(ms or 0.0 for ms in _numbers(times, "device_ms", calls))
        is_settled = number >= LEAST_PASSES and abs(took - before) <= SETTLED * before
        if is_settled or time.monotonic() - start > LONGEST_S:
            break
        before = took if number else math.inf
    session.refuse_leftovers()
    return [ms for ms in latencies if ms is not None]


def call_behind_a_spin(session: GpuSession, work: Work, values: Values) -> float | None:
    """Return the ms of one call by the child's events, issued while a kernel of the child keeps the device busy."""
    flags = session.flags()
    session.prepare(values)
    message = work.message(flags, values) | {"seeds": [values.seed]}
    flags.last += 1
    driver.write_value(session.device.stream.handle, flags.begun, flags.last)
    session.device.stream.wait()
    answer = session.issue_and_wait(message | {"spin_ms": min(MOST_SPIN_MS, SPIN * session.host_ms)})
    times = session.issue_and_wait({"op": "times"})
    session.refuse_leftovers()
    return None if "error" in answer else _numbers(times, "device_ms", 1)[0]


def _shown_by_link(session: GpuSession, answer: dict[str, Any], count: int) -> list[list[Shown]]:
    tree, claims = described(answer)
    shown = session.find(claims, count)
    per_call, rest = divmod(len(shown), count)
    if rest or not isinstance(tree.get("l"), list) or len(tree["l"]) != count:
        raise MemoryReadError("calls on inputs of one form gave results of several")
    return [shown[number * per_call : (number + 1) * per_call] for number in range(count)]


def _outputs(answer: dict[str, Any], handovers: list[Handover], changes: Sequence[int]) -> list[Values]:
    """Return the results of all calls, each with its changed inputs, which come after its own outputs."""
    taken = [handover.values() for handover in handovers]
    made = Values(answer["tree"], tuple(raw for raws in taken for raw in raws[: len(raws) - len(changes)]))
    inputs = [dict(zip(changes, raws[len(raws) - len(changes) :], strict=True)) for raws in taken]
    return [with_changed(alone(tree, made), one) for tree, one in zip(answer["tree"]["l"], inputs, strict=True)]


def _numbers(answer: dict[str, Any] | None, key: str, count: int) -> list[float | None]:
    """Parse positive numbers of a child's answer; None for any other value."""
    said = (answer or {}).get(key)
    found = said if isinstance(said, list) and len(said) == count else [None] * count
    return [float(one) if isinstance(one, int | float) and math.isfinite(one) and one > 0 else None for one in found]


def moves_data(inputs: Sequence[Values], outputs: Sequence[Values]) -> bool:
    """Return whether a part of a result is made of inputs in other places, whatever the values.

    Where the places are fixed, each word is that of one place of an input at every call. Copies whose places depend on
    the values need the host, which can copy long rows alone: those are looked for anywhere, call by call.
    """
    by_input = zip(*(values.tensors for values in inputs), strict=True)
    there = [[_words_of(raw) for raw in raws] for raws in by_input if len(raws[0].data)]
    for raws in zip(*(output.tensors for output in outputs), strict=True):
        words = [_words_of(raw) for raw in raws]
        sources = [columns for columns in there if columns[0].dtype == words[0].dtype]
        row = ROW_BYTES // words[0].element_size()
        rows = [(_rows(one, row), [_rows(calls[at], row) for calls in sources]) for at, one in enumerate(words)]
        if _are_found([(words, sources)]) or _are_found(rows):
            return True
    return False


Columns = Sequence[torch.Tensor]


def _are_found(tables: Sequence[tuple[Columns, Sequence[Columns]]]) -> bool:
    """Return whether sampled words of some columns are together in one of the sources, in each table.

    Large inputs of 16 bits hold so many words that chance finds any: those with a bit changed must not be. Zeros are no
    witness.
    """
    first = tables[0][0][0]
    if not first.numel():
        return False
    places = torch.randint(first.numel(), (SAMPLED,), device=first.device)
    found = torch.ones(2, SAMPLED, dtype=torch.bool, device=first.device)
    for columns, sources in tables:
        sample = torch.stack([column[places] for column in columns])
        both = torch.cat([_joined(sample), _joined([*sample[:-1], sample[-1] ^ 1])])
        among = [is_among(both, source).view(2, -1) for source in sources]
        found &= torch.stack([torch.zeros_like(found), *among]).any(0) & (sample != 0).all(0)
        as_they_are, changed = found.float().mean(1).tolist()
        if as_they_are - changed <= MOVED_SHARE:
            return False
    return True


def _rows(words: torch.Tensor, row: int) -> Columns:
    """Return as columns all rows of so many words: their first words, their second ones, and so on."""
    count = max(0, words.numel() - row + 1)
    return [words[at : at + count] for at in range(row)]


def is_among(sample: torch.Tensor, columns: Columns) -> torch.Tensor:
    """`torch.isin` of a small sample in any number of words: without sorting these, and beyond 2^31 of them.

    The words of several columns are joined, as the sample's elements are.
    """
    ordered: torch.Tensor = torch.unique(sample)
    hit = torch.zeros_like(ordered, dtype=torch.bool)
    for parts in zip(*(torch.split(column, PART) for column in columns), strict=True):
        words = _joined(parts)
        places = torch.searchsorted(ordered, words).clamp_(max=len(ordered) - 1)
        hit[places[ordered[places] == words]] = True
    return hit[torch.searchsorted(ordered, sample)]


def _joined(columns: Columns | torch.Tensor) -> torch.Tensor:
    """Combine each place's words of several columns into one of 64 bits; those of one column stay."""
    joined = columns[0]
    for column in columns[1:]:
        joined = joined.long() * MULTIPLIER + column
    return joined


def _words_of(raw: RawTensor) -> torch.Tensor:
    tensor = raw.tensor().reshape(-1)
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes.get(tensor.element_size(), torch.int64))
