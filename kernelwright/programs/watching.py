"""Every call of a module in this process, watched: what it is given, and under which name torch's profiler sees it.

`nn.Module.__call__` is replaced while a program is watched. Hooks would not do: with them torch takes other ways, such
as that of `nn.TransformerEncoderLayer`. A module whose `forward` is called by its own name is not seen.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.autograd import Function
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree as pytree

from kernelwright.programs.record import TensorSeen, ValuesSeen

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
    places: dict[int, PlaceTimes]
    operators: dict[str, tuple[int, float]]
    """By name: calls, and the milliseconds of their own."""
    outermost: frozenset[int] = frozenset()
    """The places that no other place calls."""

    @property
    def ms(self) -> float:
        return sum(self.places[place].forward_ms + self.places[place].backward_ms for place in self.outermost)


def read_step(events: Iterable[Any], call: str, look: str) -> StepTimes:
    """The times in a profile, where ranges of calls begin with `call`, and what `look` names does not count."""
    # A range stands there twice, the second time as what a GPU did meanwhile.
    events = [event for event in events if event.device_type == DeviceType.CPU]
    busy_us = sum(event.self_device_time_total for event in events)
    starts, ends = ([getattr(event.time_range, end) for event in events] for end in ("start", "end"))
    clock = _Clock(busy_us > LEAST_BUSY * (max(ends, default=0.0) - min(starts, default=0.0)))
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
        if event.cpu_parent is not None and event.cpu_parent.name.startswith(call):  # called from Python
            for place in set(inside):
                places[place].operators += 1
                places[place].custom |= {event.name} & custom
    for event in events:
        one = event.cpu_parent if event.name == look else None
        while one is not None:  # a look takes time in all calls around it
            if one.name.startswith(call):
                places[int(one.name.removeprefix(call))].forward_ms -= clock.ms(event)
            one = one.cpu_parent
    for event in events:
        if event.name.startswith(BACKWARD) and event.sequence_nr in by_sequence:
            for place in set(by_sequence[event.sequence_nr]):
                places[place].backward_ms += clock.ms(event)
    return StepTimes(dict(places), operators, frozenset(outermost))


def _enclosing(event: Any, call: str, look: str) -> list[int] | None:
    found, one = [], event
    while one is not None:
        if one.name == look:
            return None
        if one.name.startswith(call) and one is not event:
            found.append(int(one.name.removeprefix(call)))
        one = one.cpu_parent
    return found


class _Clock(NamedTuple):
    """Where the time of a step goes: on a processor that of the call, on a GPU that of the kernels that it started.

    Where a GPU mostly waits to be told what to do, the time is that of the calls, as on a processor.
    """

    on_device: bool

    def ms(self, event: Any) -> float:
        return float(event.device_time_total if self.on_device else event.time_range.elapsed_us()) / 1e3

    def own_ms(self, event: Any) -> float:
        return float(event.self_device_time_total if self.on_device else event.self_cpu_time_total) / 1e3


def _custom_functions() -> set[str]:
    found, waiting = set(), [Function]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            found.add(kind.__name__)
            waiting.append(kind)
    return found


MANY_ZEROS = 0.05
"""The share of zeros from which values that are never negative are taken for the output of a ReLU."""
MASKED = -1e4
"""What is as low as this, beside one other value, is a mask that is added to scores."""


def layout(tensor: torch.Tensor) -> TensorSeen:
    return TensorSeen(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
    )


@torch.no_grad()
def look(tensor: torch.Tensor) -> TensorSeen:
    seen = layout(tensor)
    if not tensor.numel() or tensor.is_complex():
        return seen
    return seen.model_copy(update={"values": values_of(tensor.detach())})


def values_of(tensor: torch.Tensor) -> ValuesSeen:
    """Which of the ways to draw gives values like these. NaN counts as if it were not there."""
    if tensor.dtype == torch.bool:
        return _two_values(tensor.to(torch.uint8), 0.0, 1.0)
    plain = tensor.double() if tensor.is_floating_point() else tensor
    infinite = bool(tensor.is_floating_point() and torch.isneginf(plain).any())
    finite = plain[torch.isfinite(plain)] if tensor.is_floating_point() else plain
    if not finite.numel():
        return ValuesSeen(drawing="constant", infinite=infinite)
    low, high = (float(value) for value in torch.aminmax(finite))
    if infinite or (tensor.is_floating_point() and low <= MASKED and high <= 0):
        lowest = plain.min() if infinite else low
        return _two_values((plain > lowest).to(torch.uint8), low, high).model_copy(update={"infinite": infinite})
    if low == high:
        return ValuesSeen(drawing="constant", low=low, high=high, mean=low)
    if tensor.is_floating_point():
        return _floating(finite, low, high)
    return _whole(tensor, low, high)


def _floating(values: torch.Tensor, low: float, high: float) -> ValuesSeen:
    mean, deviation = float(values.mean()), float(values.std())
    zeros = float((values == 0).double().mean())
    seen = ValuesSeen(drawing="normal", low=low, high=high, mean=mean, deviation=deviation, zeros=zeros)
    if low < 0:
        # A uniform distribution ends at 1.73 deviations; a normal one of this many values goes further.
        flat = values.numel() >= 64 and max(high - mean, mean - low) < 2 * deviation
        return seen.model_copy(update={"drawing": "uniform"}) if flat else seen
    return seen.model_copy(update={"drawing": "rectified" if zeros > MANY_ZEROS else "uniform"})


def _whole(tensor: torch.Tensor, low: float, high: float) -> ValuesSeen:
    last = tensor.shape[-1] if tensor.dim() else 1
    counting = torch.arange(last, device=tensor.device, dtype=tensor.dtype)
    if low == 0 and high == last - 1 and bool((tensor == counting).all()):
        return ValuesSeen(drawing="counting", low=low, high=high)
    return ValuesSeen(drawing="integers", low=low, high=high)


def _two_values(upper: torch.Tensor, low: float, high: float) -> ValuesSeen:
    """Of a mask, where `upper` says which elements are `high`."""
    share = float(upper.double().mean())
    if share in (0.0, 1.0):
        return ValuesSeen(drawing="constant", low=high if share else low, high=high if share else low)
    is_causal = upper.dim() >= 2 and bool((upper == torch.ones_like(upper).tril()).all())
    return ValuesSeen(drawing="causal" if is_causal else "share", low=low, high=high, share=share)


CALL, LOOK = "kernelwright call ", "kernelwright looks"
"""Names of ranges in a profile; behind the first stands the number of the place."""


@dataclass
class CallKind:
    """Calls that one problem could stand for: the same class and weights' shapes on the same kind of inputs."""

    module: torch.nn.Module
    """One of the modules that are called so; kept alive until it has been cut."""
    leaves: list[Any]
    """Of (args, kwargs): what a tensor is like, or the value itself."""
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
    """A module where it stands in the program, called in one kind of way."""

    root: str
    name: str
    kind: tuple[Any, ...]


@dataclass
class _Root:
    name: str
    names: dict[int, str]


@dataclass
class SeenStep:
    """One call of an outermost module with what follows it until the next."""

    wall_ms: float
    times: StepTimes

    @property
    def ms(self) -> float:
        return max(self.wall_ms, self.times.ms)


class CallWatch:
    """Watches while it is entered. `most_steps` are profiled; later ones are counted alone."""

    def __init__(
        self, most_steps: int, tell: Callable[[str], None] = lambda text: None, with_values: bool = False
    ) -> None:
        self.most_steps, self.tell, self.with_values = most_steps, tell, with_values
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
        self._depth = threading.local()
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
        stack: list[_Root] = self._depth.__dict__.setdefault("stack", [])
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
            self.tell(f"{self.steps_seen} steps, the first {self.most_steps} of them profiled")

    def _close_step(self) -> None:
        if self._open is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall_ms = 1e3 * (time.perf_counter() - self._began - self._looked_s)
        self._open.stop()
        times = read_step(list(self._open.events()), CALL, LOOK)  # type: ignore[no-untyped-call]
        self._open = None
        self.steps.append(SeenStep(wall_ms, times))
        self.tell(f"step {len(self.steps)}: {self.steps[-1].ms:.3g} ms, {len(times.places)} places")

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
        """The key of the kind of this call; a kind that is new is looked at."""
        plain = [layout(leaf) if isinstance(leaf, torch.Tensor) else _told(leaf) for leaf in leaves]
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


def _told(leaf: Any) -> str:
    return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf).__name__
