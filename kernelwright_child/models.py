"""A model, its inputs and its calls: precision, memory shared with the judge, forward and backward, and float64.

A model is cast after its construction, as `Module.to` does. For float64 it is not copied, since a lambda of its
constructor may hold the original modules. Its parameters and buffers are float64 within the context, and restored
after it.
"""

import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from kernelwright_child import wire

Made = TypeVar("Made")
NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
REINTERPRETING = (torch.Tensor.view, torch.finfo)
"""Functions whose dtype is not a precision to compute in."""

BLOCK = {"cpu": 2**15, "cuda": 2**20}
"""On a processor so few values that torch gives their operations no threads of its own, and that a cache holds them."""
RELATIVE, SHIFT = 0.1, 0.05
"""A weight is scaled by up to 10 % and raised by up to 5 % of its tensor's root mean square (of 1 where all are 0)."""


def run_source(path: str, name: str) -> dict[str, Any]:
    """Execute a file as a module, so that classes, pickling and inspection find their source."""
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module.__dict__


def construct(entry: Callable[..., Any], arguments: Any) -> Any:
    """Call a constructor with the result of `get_init_inputs`: a list by position, a dictionary by name."""
    return entry(**arguments) if isinstance(arguments, dict) else entry(*arguments)


def cast_model(model: Any, dtype: str | None) -> None:
    """Cast parameters and buffers, unless `dtype` is None; other attributes stay."""
    if dtype is not None:
        model.to(getattr(torch, dtype))


def cast_inputs(inputs: list[Any], dtype: str | None) -> list[Any]:
    """Return the inputs with floating tensors cast; integers, booleans and complex numbers stay."""
    if dtype is None:
        return inputs
    wanted = getattr(torch, dtype)

    def cast(leaf: Any) -> Any:
        return leaf.to(wanted) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return [tree_map(cast, value) for value in inputs]


def shared_tensors(fd: int, specs: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """Return one tensor for each spec (`dtype`, `shape`, `offset` in bytes), sharing the pages of the descriptor.

    Closes the descriptor; the mapping has its own, and ends with the last tensor.
    """
    try:
        memory = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    return [_tensor(memory, spec) for spec in specs]


def _tensor(memory: mmap.mmap, spec: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"])
    count = math.prod(spec["shape"])
    if count == 0:
        return torch.empty(spec["shape"], dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=spec["offset"]).view(spec["shape"])


def constant_of(weight: torch.Tensor) -> float | None:
    """Return the common value of all elements of a floating tensor; None where they differ."""
    if not weight.is_floating_point() or not weight.numel() or not bool((weight == weight.view(-1)[0]).all()):
        return None
    return float(weight.view(-1)[0])


Weights = list[tuple[torch.nn.Parameter | None, torch.Size]]


def near(given: torch.Tensor, seed: int, device: str = "cpu", out: torch.Tensor | None = None) -> torch.Tensor:
    """Return other values near the given floating ones, drawn on `device`; in `out`, which may be the given tensor.

    Ones and zeros change, so a candidate that leaves out such a weight is wrong. Positive values stay positive (a
    running variance); infinities stay. In blocks, several at a time: large weights have a thousand million values.
    """
    made = torch.empty_like(given, memory_format=torch.contiguous_format) if out is None else out
    parts, givens = (torch.split(one.reshape(-1), BLOCK[device]) for one in (made, given))
    blocks = list(zip(parts, givens, strict=True))
    with ThreadPoolExecutor(torch.get_num_threads() if len(blocks) > 1 else 1) as pool:
        found = pool.map(lambda pair: _where_room_is(device, partial(_squares, pair[1])), blocks)
        sums = [sum(part) for part in zip(*found, strict=True)]
        shift = SHIFT * (math.sqrt(sums[0] / (sums[1] or 1)) or 1.0)
        works = [partial(_fill, *block, shift, seed + at) for at, block in enumerate(blocks)]
        list(pool.map(partial(_where_room_is, device), works))
    return made


def _where_room_is(device: str, work: Callable[[str], Made]) -> Made:
    try:
        return work(device)
    except torch.OutOfMemoryError:  # others have the device's memory
        return work("cpu")


def _squares(given: torch.Tensor, device: str) -> tuple[float, int]:
    """The sum of squares of what is finite, and how many values are."""
    part = given.to(device)
    norm = float(torch.linalg.vector_norm(part, dtype=torch.float64))
    if math.isfinite(norm):
        return norm**2, part.numel()
    finite = part[part.isfinite()].double()
    return float(finite.square().sum()), finite.numel()


def _fill(made: torch.Tensor, given: torch.Tensor, shift: float, seed: int, device: str) -> None:
    part, rng = given.to(device), torch.Generator(device).manual_seed(seed)
    factor = torch.rand(part.shape, generator=rng, device=device).mul_(2 * RELATIVE).add_(1 - RELATIVE)
    drawn = (part.double() * factor).add_(torch.rand(part.shape, generator=rng, device=device), alpha=shift)
    made.copy_(drawn.to(made.dtype))  # not converted on the host, where each thread would start a team


def weights_of(model: torch.nn.Module, order: list[tuple[str, torch.Size]]) -> Weights:
    """Return the parameters of these names with the shapes of their gradients; None for other names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [(parameters.get(name), shape) for name, shape in order]


def differentiate(run: Callable[..., Any], weights: Weights, values: Any) -> Any:
    """Return outputs and gradients of a call on `[inputs, gradients of the floating outputs]`."""
    inputs, gradients = values
    inputs = [
        value.detach().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    for parameter, _ in weights:
        if parameter is not None:
            parameter.grad = None
    outputs = run(*inputs)
    flat: list[torch.Tensor] = []
    wire.pack(outputs, flat)
    roots = [tensor for tensor in flat if tensor.is_floating_point()]
    torch.autograd.backward(roots, gradients)
    return {
        "outputs": tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, outputs),
        "inputs": [value.grad if isinstance(value, torch.Tensor) else None for value in inputs],
        "weights": [None if w is None or w.grad is None else w.grad.reshape(shape) for w, shape in weights],
    }


def fix_precision(policy: str) -> dict[str, Any]:
    """Set torch's switches for `strict`, `tf32`, `half`, or `shipped` (torch's defaults), and return them.

    They control the precision of torch's own float32 products, and are the same for candidate and baseline. Only the
    older switches are used: torch refuses to read them once the newer ones were written, and candidates and
    torch.compile read them. cudnn.benchmark stays off, so that no call's algorithm depends on earlier candidates. A
    candidate may change a switch, and its tolerance decides.
    """
    lower, shipped = policy in ("tf32", "half"), policy == "shipped"
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    torch.set_float32_matmul_precision("high" if lower else "highest")
    matmul.allow_tf32 = lower
    cudnn.allow_tf32 = lower or shipped
    matmul.allow_fp16_reduced_precision_reduction = policy == "half" or shipped
    matmul.allow_bf16_reduced_precision_reduction = policy == "half" or shipped
    cudnn.benchmark = False
    return precision_switches()


def precision_switches() -> dict[str, Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul.allow_tf32": matmul.allow_tf32,
        "cudnn.allow_tf32": cudnn.allow_tf32,
        "matmul.allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "matmul.allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.benchmark": cudnn.benchmark,
    }


class Widening(TorchFunctionMode):
    """A mode that replaces narrower floating types by float64 in casts, in new tensors and in argument tensors.

    Such arguments lie outside the model: a mask in a global, a table in a list.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in REINTERPRETING or getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):
            return func(*args, **kwargs)
        args, kwargs = tree_map(
            lambda leaf: torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROW else leaf, (args, kwargs)
        )
        leaves = tree_leaves((args, kwargs))
        has_wide = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 for leaf in leaves)
        if has_wide and not _writes(func):
            given = {name: value for name, value in kwargs.items() if name != "out"}
            args, given = tree_map(widened_value, (args, given))
            kwargs = kwargs | given
        return func(*args, **kwargs)


def _writes(func: Any) -> bool:
    """Check for a function that changes its first argument in place, which must not be a copy."""
    name = getattr(func, "__name__", "")
    is_operator = name == "__setitem__" or (name.startswith("__i") and name in vars(torch.Tensor))
    return is_operator or (name.endswith("_") and not name.endswith("__"))


def widened_value(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW else leaf


@contextmanager
def widened(model: torch.nn.Module | None = None) -> Iterator[Callable[[Any], Any]]:
    """Compute in float64 for float64 inputs, with the model's parameters and buffers in float64.

    Afterwards the model is as before, also where a call counts, caches or replaces something. Yields a function for
    the results, which copies those that are the model's own tensors.
    """
    before = torch.get_default_dtype()
    held = Held([] if model is None else list(model.modules()))
    torch.set_default_dtype(torch.float64)
    try:
        held.widen()
        with Widening():
            yield held.copied
    finally:
        torch.set_default_dtype(before)
        held.put_back()


class Held:
    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._attributes = [
            # With copies of the dictionaries of parameters, buffers and modules.
            (vars(module), {k: v.copy() if isinstance(v, dict) else v for k, v in vars(module).items()})
            for module in modules
        ]
        found = (tensor for attributes, _ in self._attributes for tensor in _tensors(attributes))
        self._tensors = [(tensor, tensor.data) for tensor in dict.fromkeys(found)]
        # Integers and float64 tensors are used in place.
        self._values = [(data, data.clone()) for _, data in self._tensors if data.dtype not in NARROW]

    def widen(self) -> None:
        for tensor, data in self._tensors:
            tensor.grad = None
            if data.dtype in NARROW:
                tensor.data = data.double()

    def copied(self, results: Any) -> Any:
        """Return the results with copies of the tensors that will be restored."""
        held = {_place(tensor) for tensor, _ in self._tensors}

        def own(leaf: Any) -> Any:
            is_held = isinstance(leaf, torch.Tensor) and _place(leaf) in held
            return leaf.detach().clone() if is_held else leaf

        return tree_map(own, results)

    def put_back(self) -> None:
        for attributes, former in self._attributes:
            attributes.clear()
            attributes.update(former)
        for tensor, data in self._tensors:
            tensor.grad = None
            tensor.data = data
        for data, value in self._values:
            data.copy_(value)


def _place(tensor: torch.Tensor) -> int:
    """Return the address of its storage; a unique number for a tensor without one, such as a sparse tensor."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else -id(tensor)


def _tensors(attributes: dict[str, Any]) -> Iterator[torch.Tensor]:
    for kept in (attributes["_parameters"], attributes["_buffers"]):
        yield from (tensor for tensor in kept.values() if tensor is not None)
    yield from (value for value in attributes.values() if isinstance(value, torch.Tensor) and value.is_leaf)
