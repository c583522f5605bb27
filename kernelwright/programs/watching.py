"""Every call of a module in this process, watched: its inputs, and the times that torch's profiler sees under its name.

`nn.Module.__call__` is replaced while a program is watched. Hooks would not do: with them torch takes other ways, such
as that of `nn.TransformerEncoderLayer`. A module whose `forward` is called by its own name is not seen.
"""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd import Function
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree as pytree

from kernelwright.programs.record import TensorSeen
from kernelwright.programs.values import layout, look

LEAST_BUSY = 0.25
"""Of a step's time under the profiler, which makes launching two or three times as expensive as it is."""
BACKWARD = "autograd::engine::evaluate_function: "
CALL, LOOK = "kernelwright call ", "kernelwright looks"
"""Names of ranges in a profile; the number of the place follows the first."""


@dataclass
class PlaceTimes:
    """Of all calls in one place, with everything that is called from there."""

    calls: int = 0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    operators: int = 0
    custom: set[str] = field(default_factory=set)
    """Names of `autograd.Function`s of Python that ran there."""


@dataclass
class StepTimes:
    places: dict[int, PlaceTimes]
    operators: dict[str, tuple[int, float]]
    """By name: calls, and the milliseconds of their own."""
    outermost: frozenset[int] = frozenset()
    """The places that no other place calls."""

    @property
    def ms(self) -> float:
        return sum(self.places[place].forward_ms + self.places[place].backward_ms for place in self.outermost)


@dataclass
class SeenStep:
    """One call of an outermost module with everything that follows it until the next."""

    wall_ms: float
    times: StepTimes

    @property
    def ms(self) -> float:
        return max(self.wall_ms, self.times.ms)


def read_step(events: Iterable[Any], call: str, look: str) -> StepTimes:
    """Read the times in a profile: ranges of calls begin with `call`, and those named `look` do not count.

    On a processor the time is that of the call, on a GPU that of the kernels that it started. Where a GPU mostly waits
    for work, it is that of the call too.
    """
    # A range is there twice, the second time as the GPU's work meanwhile.
    events = [event for event in events if event.device_type == DeviceType.CPU]
    busy_us = sum(event.self_device_time_total for event in events)
    starts, ends = ([getattr(event.time_range, end) for event in events] for end in ("start", "end"))
    is_device_time = busy_us > LEAST_BUSY * (max(ends, default=0.0) - min(starts, default=0.0))

    def ms_of(event: Any) -> float:
        return float(event.device_time_total if is_device_time else event.time_range.elapsed_us()) / 1e3

    def place_of(event: Any) -> int | None:
        return int(event.name.removeprefix(call)) if event.name.startswith(call) else None

    places: dict[int, PlaceTimes] = defaultdict(PlaceTimes)
    custom = _custom_functions()
    outermost: set[int] = set()
    by_sequence: dict[int, list[int]] = {}
    operators: dict[str, tuple[int, float]] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        around = list(_parents(event))
        if event.name == look or any(one.name == look for one in around):
            continue
        inside = [place for one in around if (place := place_of(one)) is not None]
        if (place := place_of(event)) is not None:
            places[place].calls += 1
            places[place].forward_ms += ms_of(event)
            outermost |= set() if inside else {place}
            continue
        if event.name.startswith("aten::"):
            calls, ms = operators.get(event.name, (0, 0.0))
            own_us = event.self_device_time_total if is_device_time else event.self_cpu_time_total
            operators[event.name] = calls + 1, ms + float(own_us) / 1e3
        if event.sequence_nr >= 0 and not event.fwd_thread:
            by_sequence[event.sequence_nr] = inside  # the last of them is the one with a backward
        if event.cpu_parent is not None and place_of(event.cpu_parent) is not None:  # called from Python
            for place in set(inside):
                places[place].operators += 1
                places[place].custom |= {event.name} & custom
    for event in events:
        for one in _parents(event) if event.name == look else ():  # a look takes time in all calls around it
            if (place := place_of(one)) is not None:
                places[place].forward_ms -= ms_of(event)
        if event.name.startswith(BACKWARD) and event.sequence_nr in by_sequence:
            for place in set(by_sequence[event.sequence_nr]):
                places[place].backward_ms += ms_of(event)
    return StepTimes(dict(places), operators, frozenset(outermost))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its time in ms, with everything that it started on a GPU."""
    _wait()
    began = time.perf_counter()
    result = call()
    _wait()
    return result, 1e3 * (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _parents(event: Any) -> Iterator[Any]:
    while (event := event.cpu_parent) is not None:
        yield event


def _custom_functions() -> set[str]:
    found, waiting = set(), [Function]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            found.add(kind.__name__)
            waiting.append(kind)
    return found


def counted_steps(steps: list[SeenStep]) -> list[SeenStep]:
    """Count the steps whose times count: the first pays for one-time work, and is left out where another follows."""
    return steps[1:] if len(steps) > 1 and set(steps[0].times.places) <= set(steps[-1].times.places) else steps


def typical_ms(seen: Sequence[tuple[int, float]]) -> float:
    """Return the median over the steps of the ms a call, times all calls. `seen`: calls and ms of each step."""
    return sum(calls for calls, _ in seen) * statistics.median(ms / max(1, calls) for calls, ms in seen)


def times_of(steps: Iterable[SeenStep]) -> dict[int, PlaceTimes]:
    """Sum up by place its calls in all steps, with `typical_ms`."""
    by_place: dict[int, list[PlaceTimes]] = defaultdict(list)
    for step in steps:
        for place, times in step.times.places.items():
            by_place[place].append(times)
    return {
        place: PlaceTimes(
            calls=sum(one.calls for one in found),
            forward_ms=typical_ms([(one.calls, max(0.0, one.forward_ms)) for one in found]),
            backward_ms=typical_ms([(one.calls, one.backward_ms) for one in found]),
            operators=max(one.operators // max(1, one.calls) for one in found),
            custom={name for one in found for name in one.custom},
        )
        for place, found in by_place.items()
    }


def alike(steps: Iterable[SeenStep]) -> list[list[float]]:
    """Return the ms of the steps, those together that called the same places equally often."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for step in steps:
        groups[frozenset((place, times.calls) for place, times in step.times.places.items())].append(step.ms)
    return list(groups.values())


def total_ms(steps: Iterable[SeenStep]) -> float:
    """Sum up the steps, each as long as the median of those like it, so that a disturbance counts little."""
    return sum(len(group) * statistics.median(group) for group in alike(steps))


@dataclass
class CallKind:
    """Calls that one problem could represent: the same class and weights' shapes on the same kind of inputs."""

    module: torch.nn.Module
    """One of the modules that are called so; kept alive until it has been cut."""
    leaves: list[Any]
    """Of (args, kwargs): the description of a tensor, or the value itself."""
    structure: pytree.TreeSpec
    training: bool
    gradients: bool
    autocast: bool
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    """By leaf, its inputs as they were, where values are asked for."""

    @property
    def tensors(self) -> list[TensorSeen]:
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorSeen)]

    @property
    def class_name(self) -> str:
        return f"{type(self.module).__module__}.{type(self.module).__qualname__}"


@dataclass
class SeenPlace:
    """A module at its place in the program, called in one kind of way."""

    root: str
    name: str
    kind: tuple[Any, ...]


@dataclass
class _Root:
    name: str
    names: dict[int, str]


class CallWatch:
    """Watches while it is entered. `most_steps` are profiled; later ones are only counted."""

    def __init__(
        self, most_steps: int, report: Callable[[str], None] = lambda text: None, with_values: bool = False
    ) -> None:
        self.most_steps, self.report, self.with_values = most_steps, report, with_values
        self.compiled = False
        """Whether the program compiled something itself."""
        self.kinds: dict[tuple[Any, ...], CallKind] = {}
        self.places: list[SeenPlace] = []
        self.steps: list[SeenStep] = []
        self.steps_seen = 0
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._roots: dict[int, _Root] = {}
        self._sorts: dict[int, tuple[Any, ...]] = {}
        self._kept: list[torch.nn.Module] = []
        self._open: profile | None = None
        self._began = self._looked_s = 0.0
        self._in_step: set[int] = set()
        self._stack: list[_Root] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> "CallWatch":
        self._original = torch.nn.Module.__call__
        original, watch = self._original, self

        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            watch.compiled |= torch.compiler.is_compiling()
            if torch.compiler.is_compiling() or threading.get_ident() != watch._thread:
                return original(module, *args, **kwargs)
            return watch._watched(module, args, kwargs)

        self._replacement = __call__
        torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if torch.nn.Module.__call__ is self._replacement:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
        self._close_step()

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        return [(self._roots[id(module)].name, module) for module in self._kept]

    def _watched(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stack = self._stack
        root = stack[-1] if stack and id(module) in stack[-1].names else self._root(module)
        if not stack:
            self._outermost(module)
        stack.append(root)
        try:
            if self._open is None:
                return self._original(module, *args, **kwargs)
            place = self._place(root, module, args, kwargs)
            with record_function(f"{CALL}{place}"):
                return self._original(module, *args, **kwargs)
        finally:
            stack.pop()

    def _root(self, module: torch.nn.Module) -> _Root:
        if id(module) not in self._roots:
            name = type(module).__name__
            same = sum(root.name.partition(" ")[0] == name for root in self._roots.values())
            names = {id(one): path for path, one in module.named_modules()}
            self._roots[id(module)] = _Root(f"{name} {same + 1}" if same else name, names)
            self._kept.append(module)  # so that its id stays its own
        return self._roots[id(module)]

    def _outermost(self, module: torch.nn.Module) -> None:
        """Begin a step, unless the module is one that the present step has not called yet."""
        if self._in_step and id(module) not in self._in_step:
            self._in_step.add(id(module))
            return
        self._close_step()
        self._in_step = {id(module)}
        self.steps_seen += 1
        if len(self.steps) < self.most_steps:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
                torch.cuda.synchronize()
            self._open = profile(activities=activities)
            self._open.start()
            self._began, self._looked_s = time.perf_counter(), 0.0
        elif self.steps_seen % 100 == 0:
            self.report(f"{self.steps_seen} steps, the first {self.most_steps} of them profiled")

    def _close_step(self) -> None:
        if self._open is None:
            return
        _wait()
        wall_ms = 1e3 * (time.perf_counter() - self._began - self._looked_s)
        self._open.stop()
        times = read_step(list(self._open.events()), CALL, LOOK)  # type: ignore[no-untyped-call]
        self._open = None
        self.steps.append(SeenStep(wall_ms, times))
        self.report(f"step {len(self.steps)}: {self.steps[-1].ms:.3g} ms, {len(times.places)} places")

    def _place(self, root: _Root, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        began = time.perf_counter()
        with record_function(LOOK):
            leaves, structure = pytree.tree_flatten((args, kwargs))
            kind = self._kind(module, leaves, structure)
            key = (root.name, root.names[id(module)], kind)
            if key not in self._numbers:
                self._numbers[key] = len(self.places)
                self.places.append(SeenPlace(root.name, root.names[id(module)], kind))
        self._looked_s += time.perf_counter() - began
        return self._numbers[key]

    def _kind(self, module: torch.nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> tuple[Any, ...]:
        """Return the key of the kind of this call; the values of a new kind are described."""
        plain = [layout(leaf) if isinstance(leaf, torch.Tensor) else plain_key(leaf) for leaf in leaves]
        if id(module) not in self._sorts:
            weights = tuple((name, tuple(value.shape), value.dtype) for name, value in module.named_parameters())
            self._sorts[id(module)] = (type(module), repr(module), weights)
        settings = (module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        key = (self._sorts[id(module)], tuple(plain), str(structure), settings)
        if key not in self.kinds:
            looked = [look(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            self.kinds[key] = CallKind(module, looked, structure, *settings[:2], autocast)
            if self.with_values:
                given = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
                self.kinds[key].kept = {place: leaf.detach().cpu().clone() for place, leaf in given.items()}
        return key


def plain_key(leaf: Any) -> Any:
    return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf).__name__
