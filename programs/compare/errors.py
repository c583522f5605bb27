"""How far off a program's stages are from float64, with kernels and without, on the program's own inputs."""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.problems import Tolerance
from kernelwright.programs.apply.guarded import Replacement
from kernelwright.programs.compare.calls import SEED, KeptCall
from kernelwright.programs.compare.comparison import StageError
from kernelwright.programs.compare.timing import Sides
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch
from kernelwright.sandbox.correctness.distance import measure
from kernelwright.sandbox.tensors.values import RawTensor, Values


def stage_errors(sides: Sides) -> list[StageError]:
    """Of each place on the inputs that it has in the program, and then of the whole, gradients included."""
    found = []
    for kernel in sides.kernels:
        inputs = _inputs_of(sides, kernel)
        if inputs is not None:
            found.append(_stage(sides, kernel, inputs))
    sides.switch(())
    own = [_made(call) for call in sides.calls]
    exact = [_exact(call.root, call.arguments, call) for call in sides.calls]
    sides.switch(sides.parts)
    got = [_made(call) for call in sides.calls]
    sides.switch(())
    return [*found, _error("", got, own, None if None in exact else exact)]


def _inputs_of(sides: Sides, kernel: Replacement) -> Any:
    """What the place is given in the first call that comes there; None where none does."""
    sides.switch(())
    met: list[Any] = []
    hook = kernel.module.register_forward_pre_hook(lambda _, *given: met.append(given), with_kwargs=True)
    try:
        for call in sides.calls:
            _made(call)
    finally:
        hook.remove()
    return _detached(met[0]) if met else None


def _stage(sides: Sides, kernel: Replacement, inputs: Any) -> StageError:
    args, kwargs = inputs
    results = []
    with torch.no_grad():
        for parts in ((), sides.parts):
            sides.switch(parts)
            torch.manual_seed(SEED)
            results.append(kernel.module(*args, **kwargs))
        sides.switch(())
        return _error(kernel.name, results[1], results[0], _exact(kernel.module, inputs))


def _made(call: KeptCall) -> Any:
    """The call's outputs and gradients, which stay as they are."""
    call.forget_gradients()
    return _detached(call.outputs(call.root))


def _exact(module: nn.Module, inputs: Any, call: KeptCall | None = None) -> Any:
    """What a copy of the module in float64 gives, in a call of the program or by itself; None where it can not be."""
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
    said = wrong.reason if wrong else ""
    return StageError(place=place, own=usual, kernel=off, wrong=said, exact=exact is not None)


def _values(tree: Any) -> Values:
    """As the judge compares them: tensors by their bytes."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return Values({"l": [{"t": index} for index in range(len(tensors))]}, tuple(map(RawTensor.of, tensors)))


def _detached(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _doubled(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf
