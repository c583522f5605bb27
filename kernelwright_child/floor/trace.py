"""The necessary work of a model: which bytes it must read and write, and the operations of its products.

Runs in the reference's child, in a call like any other: fake tensors would compute nothing, but torch needs seconds to
import what makes them. What is found is a lower bound. Bytes are those of the whole model's inputs, weights and
outputs, once each; what lies between can stay on the chip. An input counts as far as some operation on the way to an
output reads it for certain, whatever its values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelwright_child.floor import operators
from kernelwright_child.floor.operators import NOTHING, Arithmetic

LARGEST_MAP = 2**28
"""Elements of a storage up to which overlapping partial reads are told apart; above, the largest read counts."""

Call = Callable[[torch.nn.Module, Any], Any]


class StorageView(NamedTuple):
    """A part of a storage: a strided view, of which a share is certainly read."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    item_bytes: int
    storage_bytes: int
    share: float = 1.0

    @property
    def bytes(self) -> float:
        """Distinct bytes; views that overlap themselves can not have more than their storage."""
        count = 1
        for size, stride in zip(self.size, self.stride, strict=True):
            count *= size if stride else min(size, 1)
        return min(count * self.item_bytes, self.storage_bytes) * self.share


class Node(NamedTuple):
    name: str
    reads: tuple[tuple[int, StorageView], ...]
    makes: tuple[int, ...]
    dtype: str
    arithmetic: Arithmetic
    kind: operators.Kind


class Tracer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self._alive: dict[int, StorageWeakRef] = {}
        """So that no address is used twice; the memory itself may go."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks; to keep its compiler out of `__torch_dispatch__` it would first import it: seconds."""
        return False

    def key(self, tensor: torch.Tensor) -> int:
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return int(self._alive.setdefault(storage.cdata, storage).cdata)

    def part(self, tensor: torch.Tensor, share: float = 1.0) -> StorageView:
        whole = tensor.untyped_storage().nbytes()
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return StorageView(size, stride, int(tensor.storage_offset()), tensor.element_size(), whole, share)

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation as it would be, then note it."""
        options = options or {}
        result = function(*arguments, **options)
        if function.namespace == "prim":  # asks for a tensor's device or the like
            return result
        given, made = _strided((arguments, options)), _strided(result)
        makes = tuple(self.key(tensor) for tensor in made)
        is_view = made and not function._schema.is_mutable and set(makes) <= {self.key(tensor) for tensor in given}
        if not is_view:
            self._note(function, (arguments, options, given), result, makes)
        elif operators.repeats(given, made):
            self.nodes.append(Node(operators.name(function), (), makes, "", NOTHING, "other"))
        return result

    def _note(
        self,
        function: Any,
        called: tuple[Sequence[Any], dict[str, Any], list[torch.Tensor]],
        result: Any,
        makes: tuple[int, ...],
    ) -> None:
        arguments, options, given = called
        name = operators.name(function)
        shares = operators.shares(name, arguments, result)
        reads = tuple((self.key(t), self.part(t, shares.get(id(t), 1.0))) for t in given)
        dtype = next((str(t.dtype).removeprefix("torch.") for t in given), "")
        arithmetic = operators.arithmetic(function, arguments, options, result)
        self.nodes.append(Node(name, reads, makes, dtype, arithmetic, operators.kind(name)))


def trace(model: torch.nn.Module, arguments: Any, call: Call | None = None) -> dict[str, Any]:
    """The work of `call(model, arguments)`; as it stands, of `model(*arguments)` without gradients.

    `bytes`: `read` and `written`. `flops`: operations of matrix products and convolutions by dtype, in the direct
    algorithm. `least_flops`: the same in the best algorithm known; empty where the model could be rearranged to save
    some (see `operators.firm`). `operators`: the names of all that was dispatched, in order.
    """
    call = call or _forward
    tracer = Tracer()
    state = [*model.parameters(), *model.buffers(), *_loose(model)]
    sources = {tracer.key(tensor) for tensor in (*_strided(arguments), *_strided(state))}
    with tracer:
        results = _strided(call(model, arguments))
    made = [(tracer.key(tensor), tracer.part(tensor)) for tensor in results]
    needed = list(_needed(tracer.nodes, {key for key, _ in made}))
    read = _bytes([read for node in needed for read in node.reads if read[0] in sources])
    written = _bytes([(key, part) for key, part in made if key not in sources])
    firm = operators.firm([(node.kind, node.name) for node in needed])
    return {
        "bytes": {"read": read, "written": written},
        "flops": _by_dtype(needed, "direct"),
        "least_flops": _by_dtype([node for node, sure in zip(needed, firm, strict=True) if sure], "least"),
        "operators": [node.name for node in tracer.nodes],
    }


def _forward(model: torch.nn.Module, arguments: Any) -> Any:
    with torch.no_grad():
        return model(*arguments)


def _strided(tree: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def _loose(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def _needed(nodes: Sequence[Node], wanted: set[int]) -> Iterator[Node]:
    """Nodes that something wanted depends on, in their order; what makes nothing decides on the way, so it counts."""
    found = []
    for node in reversed(nodes):
        if not node.makes or wanted & set(node.makes):
            wanted |= {key for key, _ in node.reads}
            found.append(node)
    yield from reversed(found)


def _bytes(parts: Sequence[tuple[int, StorageView]]) -> int:
    by_storage: dict[int, set[StorageView]] = {}
    for key, part in parts:
        by_storage.setdefault(key, set()).add(part)
    return sum(int(_covered(found)) for found in by_storage.values())


def _covered(parts: set[StorageView]) -> float:
    """A lower bound on the bytes that parts of one storage cover together."""
    largest = max(part.bytes for part in parts)
    sure = [part for part in parts if part.share == 1.0]
    widths = {part.item_bytes for part in sure}
    if len(sure) < 2 or len(widths) > 1 or largest >= max(part.storage_bytes for part in parts):
        return largest
    (width,) = widths
    elements = sure[0].storage_bytes // width
    if elements > LARGEST_MAP:
        return largest
    touched = np.zeros(elements, dtype=bool)
    for part in sure:
        np.lib.stride_tricks.as_strided(touched[part.offset :], part.size, part.stride)[...] = True
    return max(largest, float(np.count_nonzero(touched)) * width)


def _by_dtype(nodes: Sequence[Node], which: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for node in nodes:
        if node.arithmetic.direct:
            total[node.dtype] = total.get(node.dtype, 0) + int(getattr(node.arithmetic, which))
    return {dtype: count for dtype, count in total.items() if count}
