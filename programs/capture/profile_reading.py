"""What torch's profiler saw in a step: the time of each place forward and backward, and of each operator.

A backward operator bears the sequence number of its forward one, and so belongs to the place of that.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch._C._autograd import DeviceType
from torch.autograd import Function

LEAST_BUSY = 0.25
"""Of a step's time under the profiler, which makes launching two or three times as dear as it is."""
BACKWARD = "autograd::engine::evaluate_function: "


@dataclass
class PlaceTimes:
    """Of all calls in one place, with what is called from there."""

    calls: int = 0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    operators: int = 0
    custom: set[str] = field(default_factory=set)
    """Names of `autograd.Function`s of Python that ran there."""


@dataclass
class StepTimes:
    """One step."""

    places: dict[int, PlaceTimes]
    operators: dict[str, tuple[int, float]]
    """By name: calls, and the milliseconds of their own."""
    outermost: frozenset[int] = frozenset()
    """The places that no other place calls."""

    @property
    def ms(self) -> float:
        """Of all calls together, by the clock of the places."""
        return sum(self.places[place].forward_ms + self.places[place].backward_ms for place in self.outermost)


def read_step(events: Iterable[Any], call: str, look: str) -> StepTimes:
    """The times in a profile, where ranges of calls begin with `call`, and what `look` names does not count."""
    # A range stands there twice, the second time as what a GPU did meanwhile.
    events = [event for event in events if event.device_type == DeviceType.CPU]
    clock = _clock(events)
    places: dict[int, PlaceTimes] = defaultdict(PlaceTimes)
    enclosing = {id(event): _enclosing(event, call, look) for event in events}  # numbers of two sorts are in `event.id`
    custom = _custom_functions()
    outermost: set[int] = set()
    by_sequence: dict[int, list[int]] = {}
    operators: dict[str, tuple[int, float]] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        inside = enclosing[id(event)]
        if inside is None:
            continue
        if event.name.startswith(call):
            times = places[int(event.name.removeprefix(call))]
            times.calls += 1
            times.forward_ms += clock.ms(event)
            if not inside:
                outermost.add(int(event.name.removeprefix(call)))
            continue
        if event.name.startswith("aten::"):
            calls, ms = operators.get(event.name, (0, 0.0))
            operators[event.name] = calls + 1, ms + clock.own_ms(event)
        if event.sequence_nr >= 0 and not event.fwd_thread:
            by_sequence[event.sequence_nr] = inside  # the last of them is the one with a backward
        if _is_outermost(event, call):
            for place in set(inside):
                places[place].operators += 1
                places[place].custom |= {event.name} & custom
    _take_off_looks([event for event in events if event.name == look], places, call, clock)
    for event in events:
        if event.name.startswith(BACKWARD) and event.sequence_nr in by_sequence:
            for place in set(by_sequence[event.sequence_nr]):
                places[place].backward_ms += clock.ms(event)
    return StepTimes(dict(places), operators, frozenset(outermost))


def _enclosing(event: Any, call: str, look: str) -> list[int] | None:
    """The places within which an event lies; None for what is our own looking."""
    found, one = [], event
    while one is not None:
        if one.name == look:
            return None
        if one.name.startswith(call) and one is not event:
            found.append(int(one.name.removeprefix(call)))
        one = one.cpu_parent
    return found


def _is_outermost(event: Any, call: str) -> bool:
    """Whether an operator was called from Python, and not by another one."""
    return event.cpu_parent is not None and event.cpu_parent.name.startswith(call)


def _take_off_looks(looks: list[Any], places: dict[int, PlaceTimes], call: str, clock: "_Clock") -> None:
    for event in looks:
        one = event.cpu_parent
        while one is not None:
            if one.name.startswith(call):
                places[int(one.name.removeprefix(call))].forward_ms -= clock.ms(event)
            one = one.cpu_parent


class _Clock(NamedTuple):
    """Where the time of a step goes: on a processor that of the call, on a GPU that of the kernels that it started.

    Where a GPU mostly waits to be told what to do, the time is that of the calls, as on a processor.
    """

    on_device: bool

    def ms(self, event: Any) -> float:
        """With what it calls."""
        return float(event.device_time_total if self.on_device else event.time_range.elapsed_us()) / 1e3

    def own_ms(self, event: Any) -> float:
        """Without."""
        return float(event.self_device_time_total if self.on_device else event.self_cpu_time_total) / 1e3


def _clock(events: list[Any]) -> _Clock:
    busy_us = sum(event.self_device_time_total for event in events)
    starts, ends = ([getattr(event.time_range, end) for event in events] for end in ("start", "end"))
    return _Clock(busy_us > LEAST_BUSY * (max(ends, default=0.0) - min(starts, default=0.0)))


def _custom_functions() -> set[str]:
    found, waiting = set(), [Function]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            found.add(kind.__name__)
            waiting.append(kind)
    return found
