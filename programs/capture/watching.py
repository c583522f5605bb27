"""Every call of a module in this process, watched: what it is given, and under which name torch's profiler sees it.

`nn.Module.__call__` is replaced while a program is watched. Hooks would not do: with them torch takes other ways, such
as that of `nn.TransformerEncoderLayer`. A module whose `forward` is called by its own name is not seen.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree as pytree

from kernelwright.programs.capture.looking import layout, look
from kernelwright.programs.capture.profile_reading import StepTimes, read_step
from kernelwright.programs.record.seen import TensorSeen

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
        """The tensors among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorSeen)]

    @property
    def class_name(self) -> str:
        """With its module."""
        return f"{type(self.module).__module__}.{type(self.module).__qualname__}"


@dataclass
class SeenPlace:
    """A module where it stands in the program, called in one kind of way."""

    root: str
    name: str
    kind: tuple[Any, ...]
    calls: int = 0
    """In steps that were profiled."""


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
        """By the clock, or what its calls took by the profile's where that is more: no part takes more than this."""
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
        """CallWatch no longer."""
        if torch.nn.Module.__call__ is self._replacement:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
        self._close_step()

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        """The program's outermost modules by name."""
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
