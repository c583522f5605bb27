"""One process of a comparison: the user's own program is run once, its calls are timed on every side.

`main ORDER OUT`: the order as JSON, and the file for the times. Order of the sides, pairing and statistics are the
judge's. Only the loop in `Sides.samples` is not: a pair of the judge's `Timing` is a call of two jailed processes on
values that it draws and whose outputs it compares. Here all sides are one module in one process that switches its
kernels, and the inputs are those that the program gave.
"""

import contextlib
import copy
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.problems import Tolerance
from kernelwright.programs.apply import apply
from kernelwright.programs.compare import ALONE, KERNELS, Order, StageError, Times
from kernelwright.programs.guarded import NoPlace, Replacement, replacements
from kernelwright.programs.watching import timed
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch
from kernelwright.sandbox.correctness.distance import measure
from kernelwright.sandbox.tensors import RawTensor, Values
from kernelwright.sandbox.timing.baseline_facts import PLACEBO
from kernelwright.sandbox.timing.paired import BACKWARDS, PAIRS_A_WORKER
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED

SEED = 0
MOST_CALLS = 8
"""Calls of different kinds; those beyond are like some of these in most programs."""
WARM_UP = 3
MOST_PAIRS, BUDGET_S = 20, 8.0
"""Most samples of each side in a process; after this time no more are taken, but always those of a worker pair."""


def main(asked: str, out: str) -> int:
    """Return 2 with a sentence where the program cannot be compared."""
    order = Order.model_validate_json(asked)
    with contextlib.redirect_stdout(sys.stderr):
        calls = calls_of(Path(order.script), order.arguments)
        try:
            sides = Sides(calls, Path(order.run), order.compiled)
        except NoPlace as error:
            print(error, file=sys.stderr)
            return 2
        errors = stage_errors(sides) if order.errors else []
        taken, fallbacks = sides.counts()
        times = Times(
            samples={name: tuple(found) for name, found in sides.samples().items()},
            calls=len(calls),
            backward=any(call.backward for call in calls),
            on_device=any(call.is_on_device for call in calls),
            threads=torch.get_num_threads(),
            errors=tuple(errors),
            taken=taken,
            fallbacks=fallbacks,
            notes=tuple(sides.notes),
        )
    Path(out).write_text(times.model_dump_json(), encoding="utf-8")
    return 0


class KeptCall:
    """One call of an outermost module, with what it was given and under which switches of torch's."""

    def __init__(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.root = root
        self.backward = False
        """Whether gradients flowed back through it."""
        self.arguments = pytree.tree_map(_own, (args, kwargs))
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._autocast = {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}

    def outputs(
        self, run: Callable[..., Any], arguments: Any = None, seeded: bool = True
    ) -> tuple[Any, list[torch.Tensor | None]]:
        """Make the call again, with `run` in the root's place; its outputs, and the weights' gradients if any flowed.

        Its draws are the same each time, unless it is not `seeded` here (which takes as long as a few operators).
        Gradients come from ones in place of the program's loss.
        """
        args, kwargs = arguments or self.arguments
        if seeded:
            torch.manual_seed(SEED)
        with contextlib.ExitStack() as switches:
            switches.enter_context(torch.set_grad_enabled(self._gradients))
            if self._inference:
                switches.enter_context(torch.inference_mode())
            for kind, dtype in self._autocast.items():
                switches.enter_context(torch.autocast(kind, dtype=dtype))
            outputs = run(*args, **kwargs)
            if not self.backward:
                return outputs, []
            flowing = _flowing(outputs)
            torch.autograd.backward(flowing, [torch.ones_like(one) for one in flowing])
            return outputs, [parameter.grad for parameter in self.root.parameters()]

    @property
    def is_on_device(self) -> bool:
        return any(tensor.is_cuda for tensor in self._tensors())

    def forget_gradients(self) -> None:
        for tensor in self._tensors():
            tensor.grad = None

    def _tensors(self) -> list[torch.Tensor]:
        leaves = (*self.root.parameters(), *pytree.tree_leaves(self.arguments))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def calls_of(script: Path, arguments: Sequence[str]) -> list[KeptCall]:
    """Run the script as a program of its own, and keep a call of each kind of its outermost modules.

    It stays this process's `__main__`: torch.compile looks up names of the script's functions there.
    """
    kept: dict[Any, KeptCall] = {}
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.parent)]
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__file__ = str(script)
    torch.manual_seed(SEED)
    try:
        with _kept_in(kept), contextlib.suppress(SystemExit):
            exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), main.__dict__)
    finally:
        sys.argv, sys.path[:] = before
    return list(kept.values())


@contextlib.contextmanager
def _kept_in(kept: dict[Any, KeptCall]) -> Iterator[None]:
    """Note each outermost call of this thread. `__call__` itself is replaced: hooks change torch's ways."""
    original, inside, thread = nn.Module.__call__, [False], threading.get_ident()

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inside[0] or threading.get_ident() != thread or torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        inside[0] = True
        try:
            call = _noted(kept, module, args, kwargs)
            outputs = original(module, *args, **kwargs)
        finally:
            inside[0] = False
        if call is not None:
            for one in _flowing(outputs):
                one.register_hook(lambda _: setattr(call, "backward", True))  # type: ignore[no-untyped-call]
        return outputs

    nn.Module.__call__ = __call__  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def _noted(kept: dict[Any, KeptCall], module: nn.Module, args: Any, kwargs: Any) -> KeptCall | None:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = id(module), str(structure), tuple(map(_kind, leaves)), module.training, torch.is_grad_enabled()
    if key not in kept and len(kept) < MOST_CALLS:
        kept[key] = KeptCall(module, args, kwargs)
    return kept.get(key)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf)


def _flowing(outputs: Any) -> list[torch.Tensor]:
    """Select those that gradients can come back through."""
    return [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad]


def _own(leaf: Any) -> Any:
    """Copy a tensor, which the program may write into later; one with gaps or overlaps stays, for its layout."""
    if not isinstance(leaf, torch.Tensor) or not torch.ops.aten.is_non_overlapping_and_dense(leaf):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


class Sides:
    """The program's calls on each side: by the modules' own code, by kernels, compiled."""

    def __init__(self, calls: Sequence[KeptCall], run: Path, compiled: Sequence[str]) -> None:
        """Put the run's kernels into every root that has a place for one. `NoPlace` where none has."""
        self.calls, self.notes = calls, list[str]()
        found: dict[int, Replacement] = {}
        refused = "the program called no module"
        for root in dict.fromkeys(call.root for call in calls):
            try:
                apply(root, run)
            except NoPlace as error:
                refused = str(error)
            found |= {id(one): one for one in replacements(root)}
        if not found:
            raise NoPlace(refused)
        self.kernels = list(found.values())
        self.parts = list(dict.fromkeys(one.part for one in self.kernels))
        self.switch(())
        self._compiled: dict[str, dict[int, Callable[..., Any]]] = {}
        for mode in compiled:
            self._compile(f"{COMPILED} {mode}", mode)

    @property
    def names(self) -> list[str]:
        alone = [f"{ALONE}{part}" for part in self.parts] if len(self.parts) > 1 else []
        return [KERNELS, AS_SHIPPED, *self._compiled, *alone, PLACEBO]

    def switch(self, parts: Sequence[str]) -> None:
        """Enable the kernels of these parts, and no others."""
        for kernel in self.kernels:
            kernel.enable(kernel.part in parts)

    def made(self, name: str) -> Callable[[], list[Any]]:
        alone = [name.removeprefix(ALONE)] if name.startswith(ALONE) else []
        self.switch(self.parts if name == KERNELS else alone)
        roots = self._compiled.get(name, {})
        return lambda: [call.outputs(roots.get(id(call.root), call.root), seeded=False) for call in self.calls]

    def sample_ms(self, name: str) -> float:
        run = self.made(name)
        for call in self.calls:
            call.forget_gradients()
        torch.manual_seed(SEED)
        return timed(run)[1]

    def counts(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Count by place how often the kernel, and the module's own code by reason, is taken in one sample."""
        for kernel in self.kernels:
            kernel.taken = 0
            kernel.fallbacks.clear()
        self.sample_ms(KERNELS)
        taken = {kernel.name: kernel.taken for kernel in self.kernels}
        return taken, {kernel.name: dict(kernel.fallbacks) for kernel in self.kernels if kernel.fallbacks}

    def samples(self) -> dict[str, list[float]]:
        """Time all sides: by side in ms, sample i of all within the same moments. The placebo is eager once more."""
        found: dict[str, list[float]] = {name: [] for name in self.names}
        for name in self.names:
            for _ in range(WARM_UP):
                self.sample_ms(name)
        gc.collect()
        gc.disable()
        try:
            start = time.monotonic()
            while len(found[KERNELS]) < MOST_PAIRS:
                count = len(found[KERNELS])
                turn = count % PAIRS_A_WORKER
                if count and turn == 0 and time.monotonic() - start > BUDGET_S:
                    break
                for name in self.names[::-1] if turn in BACKWARDS else self.names:
                    found[name].append(self.sample_ms(name))
        finally:
            gc.enable()
        return found

    def _compile(self, name: str, mode: str) -> None:
        try:
            torch._dynamo.reset()
            roots = {id(call.root): torch.compile(call.root, mode=mode) for call in self.calls}
            self._compiled[name] = roots
            self.made(name)()
        except Exception as error:  # a compiler may fail in any way, and the program has others
            self._compiled.pop(name, None)
            self.notes.append(f"{name} failed: {str(error).strip().splitlines()[0][:200]}")


def stage_errors(sides: Sides) -> list[StageError]:
    """Measure each place on its inputs in the program, and then the whole, gradients included."""
    found = []
    for kernel in sides.kernels:
        sides.switch(())
        given = _inputs_of(sides, kernel)
        if given is None:
            continue
        args, kwargs = given
        results = []
        with torch.no_grad():
            for parts in ((), sides.parts):
                sides.switch(parts)
                torch.manual_seed(SEED)
                results.append(kernel.module(*args, **kwargs))
            sides.switch(())
            found.append(_error(kernel.name, results[1], results[0], _exact(kernel.module, given)))
    sides.switch(())
    own = [_made(call) for call in sides.calls]
    exact = [_exact(call.root, call.arguments, call) for call in sides.calls]
    sides.switch(sides.parts)
    got = [_made(call) for call in sides.calls]
    sides.switch(())
    return [*found, _error("", got, own, None if None in exact else exact)]


def _inputs_of(sides: Sides, kernel: Replacement) -> Any:
    """Return the inputs of the first call of a place; None where no call comes there."""
    seen: list[Any] = []
    hook = kernel.module.register_forward_pre_hook(lambda _, *given: seen.append(given), with_kwargs=True)
    try:
        for call in sides.calls:
            _made(call)
    finally:
        hook.remove()
    return _detached(seen[0]) if seen else None


def _made(call: KeptCall) -> Any:
    call.forget_gradients()
    return _detached(call.outputs(call.root))


def _exact(module: nn.Module, inputs: Any, call: KeptCall | None = None) -> Any:
    """Compute with a copy of the module in float64, in a call of the program or by itself; None where that fails."""
    args, kwargs = pytree.tree_map(_doubled, inputs)
    try:
        twin = copy.deepcopy(module).double()
        if call is None:
            torch.manual_seed(SEED)
            return twin(*args, **kwargs)
        other = copy.copy(call)
        other.root = twin
        return _detached(other.outputs(twin, (args, kwargs)))
    except Exception:  # a module may not let itself be copied, or insist on its dtype
        return None


def _error(place: str, got: Any, own: Any, exact: Any) -> StageError:
    mine, near, true = _values(got), _values(own), _values(own if exact is None else exact)
    wrong = mismatch(mine, true, near, Tolerance(), PLAIN)
    off, usual = 0.0, 0.0
    for raws in zip(mine.tensors, near.tensors, true.tensors, strict=False):
        result, other, truth = (raw.tensor() for raw in raws)
        if other.is_floating_point() and result.shape == other.shape and other.numel():
            error, rounding, want = measure(result, other, truth)
            scale = want.largest or 1.0
            off, usual = max(off, error.largest / scale), max(usual, rounding.largest / scale)
    refused = wrong.reason if wrong else ""
    return StageError(place=place, own=usual, kernel=off, wrong=refused, exact=exact is not None)


def _values(tree: Any) -> Values:
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return Values({"l": [{"t": index} for index in range(len(tensors))]}, tuple(map(RawTensor.of, tensors)))


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), tree)


def _doubled(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf
