"""The necessary work of a model: the bytes that it must read and write, and the operations of its products.

It runs in the reference's child during a normal call, since torch needs seconds to import fake tensors. The result is
a lower bound. Bytes are those of the model's inputs, weights and outputs, once each; intermediate results can stay on
the chip. An input counts as far as operations on the way to an output certainly read it, whatever its values.

First come the tables of single operators: their reads, their arithmetic, and whether a model may be rearranged around
them. An operator in no table reads all its inputs and computes nothing that counts. Products and convolutions count the
operations of the direct algorithm, and the fewest known. A multiply-add counts as two operations, as in every vendor's
peak.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Arithmetic(NamedTuple):
    direct: int
    """Operations of the direct algorithm, without those outside the image or between the strides."""
    least: int
    """Operations of the best algorithm known for large sizes, without transforms of which only the limit is known."""


NOTHING = Arithmetic(0, 0)


def product(batch: int, rows: int, inner: int, columns: int) -> Arithmetic:
    return Arithmetic(2 * batch * rows * inner * columns, int(2 * batch * fewest(rows, inner, columns)))


def fewest(rows: float, inner: float, columns: float) -> float:
    """Count multiply-adds of a matrix product by Strassen's recursion in Winograd's form, where it saves any.

    Seven half-sized products and 15 additions of blocks: 4 of the left factor, 4 of the right one, 7 of the result
    (S. Winograd, On multiplication of 2x2 matrices, Linear Algebra and its Applications 4, 1971). An addition counts as
    a multiply-add.
    """
    plain = rows * inner * columns
    if min(rows, inner, columns) < 2:
        return plain
    additions = (4 * rows * inner + 4 * inner * columns + 7 * rows * columns) / 4
    return min(plain, 7 * fewest(rows / 2, inner / 2, columns / 2) + additions)


class ConvolutionAxis(NamedTuple):
    pairs: int
    """Pairs of a position and a tap that fall on an element, not on padding."""
    near: int
    """Positions with such a pair: of the output, for a transposed convolution of the input."""
    far: int
    """Elements with such a pair: of the input, for a transposed convolution of the output."""


class Window(NamedTuple):
    kernel: int
    stride: int
    padding: int
    dilation: int

    def axis(self, near: int, far: int) -> ConvolutionAxis:
        """Count pairs: position n and tap k fall on element n * stride - padding + k * dilation of `far` elements."""
        pairs, positions, elements = 0, [], []
        for tap in range(self.kernel):
            shift = tap * self.dilation - self.padding
            first = max(0, -(shift // self.stride))
            end = min(near, (far - 1 - shift) // self.stride + 1)
            if first >= end:
                continue
            pairs += end - first
            positions.append((first, end))
            # Elements with one remainder form an interval of quotients.
            quotient, remainder = divmod(shift, self.stride)
            elements.append((remainder, first + quotient, end + quotient))
        by_remainder = {r: _union((a, b) for other, a, b in elements if other == r) for r, _, _ in elements}
        return ConvolutionAxis(pairs, _union(positions), sum(by_remainder.values()))


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Count the integers in the union of half-open intervals."""
    total, reached = 0, None
    for first, end in sorted(intervals):
        start = first if reached is None else max(first, reached)
        if end > start:
            total += end - start
            reached = end
    return total


class Convolution(NamedTuple):
    image: Sequence[int]
    """[batch, channels, axes...] of the input."""
    weight: Sequence[int]
    """As torch keeps it: [out, in / groups, kernel...]; transposed: [in, out / groups, kernel...]."""
    result: Sequence[int]
    """[batch, channels, axes...] of the output."""
    windows: Sequence[Window]
    transposed: bool
    groups: int

    @property
    def arithmetic(self) -> Arithmetic:
        """Operations of the convolution.

        Direct: a multiply-add for each pair of position and tap, and each pair of channels. Least: a multiplication for
        each output and pair of channels, the limit of minimal filtering for large tiles (S. Winograd, Arithmetic
        Complexity of Computations, 1980: m + r - 1 for m outputs of r taps) and of the Fourier transform, summed over
        the channels as a matrix product.
        """
        pairs = outputs = 1
        for axis in self._axes:
            pairs *= axis.pairs
            outputs *= axis.far if self.transposed else axis.near
        batch, into, out = self.image[0], self.image[1] // self.groups, self.result[1] // self.groups
        least = product(self.groups, batch * outputs, into, out).least
        return Arithmetic(2 * batch * pairs * self.weight[0] * self.weight[1], least)

    @property
    def reached(self) -> float:
        """The share of the input that any output depends on."""
        share = 1.0
        for axis, size in zip(self._axes, self.image[2:], strict=True):
            share *= (axis.near if self.transposed else axis.far) / size
        return share

    @property
    def _axes(self) -> list[ConvolutionAxis]:
        sizes = zip(self.windows, self.image[2:], self.result[2:], strict=True)
        if self.transposed:
            return [window.axis(near=own, far=made) for window, own, made in sizes]
        return [window.axis(near=made, far=own) for window, own, made in sizes]


def attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> Arithmetic:
    """Count scores and weighted values of [batch, heads, tokens, features], as without a mask."""
    batch = query[0] * query[1]
    products = product(batch, query[2], query[3], key[2]), product(batch, query[2], key[2], value[3])
    return Arithmetic(*map(sum, zip(*products, strict=True)))


def recurrence(steps: torch.Tensor, weights: Sequence[torch.Tensor]) -> Arithmetic:
    """Count the products of an RNN: each weight matrix meets each step [., ., features]. Their least is unknown."""
    of_a_step = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return Arithmetic(2 * math.prod(steps.shape[:-1]) * of_a_step, 0)


Kind = Literal["product", "bend", "plain", "other"]
"""`bend`: elementwise and not linear. `plain`: linear, and keeps every element. `other`: the rest."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BENDS = _words(
    "relu gelu silu sigmoid tanh exp leaky_relu elu hardswish hardsigmoid hardtanh mish softplus clamp clamp_min "
    "clamp_max _softmax _log_softmax _safe_softmax native_layer_norm native_group_norm log_sigmoid_forward relu6 "
    "erf sqrt rsqrt log pow abs"
)
PLAIN = _words("add sub mul div neg clone _to_copy copy_ contiguous alias detach empty empty_like")
UNREAD = _words(
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_zeros new_ones "
    "new_full new_empty_strided fill_ zero_ uniform_ normal_ any all"
)
"""Operators that use a tensor's shape alone, or may stop at the first decisive element."""
PARTLY_READ = dict.fromkeys(
    _words(
        "copy_ index index_select gather take embedding _embedding_bag _embedding_bag_forward_only nll_loss_forward "
        "nll_loss2d_forward grid_sampler_2d grid_sampler_3d index_put index_put_ scatter scatter_ slice_scatter "
        "select_scatter masked_fill masked_fill_ masked_select tril triu"
    ),
    (0,),
) | {"where": (1, 2)}
"""Positions of arguments of which values decide the part that is read: none of it counts."""
ATTENTION = "_scaled_dot_product_"


def operator_name(function: Any) -> str:
    return str(function._schema.name).partition("::")[2]


def read_shares(name: str, arguments: Sequence[Any], result: Any) -> dict[int, float]:
    """Return the certainly read share by `id` of a tensor argument, where it is below 1."""
    tensors = {i: value for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
    if name in UNREAD:
        return {id(value): 0.0 for value in tensors.values()}
    if name in PARTLY_READ:
        return {id(tensors[i]): 0.0 for i in PARTLY_READ[name] if i in tensors}
    if name == "convolution":
        return {id(tensors[0]): convolution(arguments, result).reached}
    if name in ("max_pool2d_with_indices", "avg_pool2d", "max_pool3d_with_indices", "avg_pool3d"):
        return {id(tensors[0]): _pooled(name, arguments)}
    if name.startswith("upsample_"):
        made = result if isinstance(result, torch.Tensor) else result[0]
        return {id(tensors[0]): min(1.0, made.numel() / max(1, tensors[0].numel()))}
    return {}


def _pooled(name: str, arguments: Sequence[Any]) -> float:
    """Return a lower bound on the share of an image that windows with gaps between them read."""
    axes = 3 if "3d" in name else 2
    kernel = _spread(arguments[1], axes)
    stride = _spread(arguments[2] if len(arguments) > 2 and arguments[2] else kernel, axes)
    share = 1.0
    for window, step, size in zip(kernel, stride, arguments[0].shape[-axes:], strict=True):
        # The last, incomplete windows may be left out.
        share *= 1.0 if step <= window and size % step == 0 else min(1.0, max(0.0, (size // step - 1) * window / size))
    return share


def _spread(value: Any, axes: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * axes if len(values) == 1 else values


def arithmetic_of(function: Any, arguments: Sequence[Any], options: dict[str, Any], result: Any) -> Arithmetic:
    """Count the operator's arithmetic, if it is a product; without a formula here, by torch's, with 0 as the least."""
    name = operator_name(function)
    if name in FORMULAS:
        return FORMULAS[name](arguments, result)
    if name.startswith(ATTENTION) and not name.endswith("_backward"):
        return _attention([*arguments, *options.values()])
    registered = flop_registry.get(getattr(function, "overloadpacket", None))
    if registered is None:
        return NOTHING
    return Arithmetic(int(registered(*arguments, **options, out_val=result)), 0)


def convolution(arguments: Sequence[Any], result: torch.Tensor) -> Convolution:
    image, weight, _, stride, padding, dilation, transposed, _, groups = arguments
    axes = image.dim() - 2
    spread = (_spread(value, axes) for value in (stride, padding, dilation))
    windows = [Window(*words) for words in zip(weight.shape[2:], *spread, strict=True)]
    return Convolution(image.shape, weight.shape, result.shape, windows, transposed, groups)


def _attention(arguments: Sequence[Any]) -> Arithmetic:
    """Count half of it for a possible causal mask; the least is then unknown, as with a mask of values."""
    whole = attention(*(tensor.shape for tensor in arguments[:3]))
    masked = any(value is True or isinstance(value, torch.Tensor) for value in arguments[3:])
    return Arithmetic(whole.direct // 2, 0) if masked else whole


FORMULAS: dict[str, Callable[[Sequence[Any], Any], Arithmetic]] = {
    "mm": lambda a, out: product(1, a[0].shape[0], a[0].shape[1], a[1].shape[1]),
    "addmm": lambda a, out: product(1, a[1].shape[0], a[1].shape[1], a[2].shape[1]),
    "bmm": lambda a, out: product(a[0].shape[0], a[0].shape[1], a[0].shape[2], a[1].shape[2]),
    "baddbmm": lambda a, out: product(a[1].shape[0], a[1].shape[1], a[1].shape[2], a[2].shape[2]),
    "mv": lambda a, out: product(1, a[0].shape[0], a[0].shape[1], 1),
    "addmv": lambda a, out: product(1, a[1].shape[0], a[1].shape[1], 1),
    "dot": lambda a, out: product(1, 1, a[0].shape[0], 1),
    "convolution": lambda a, out: convolution(a, out).arithmetic,
    "_cudnn_rnn": lambda a, out: recurrence(a[0], a[1]),
    "mkldnn_rnn_layer": lambda a, out: recurrence(a[0], a[1:5]),
}


def kind_of(name: str) -> Kind:
    if name in FORMULAS or name.startswith(ATTENTION):
        return "product"
    plain = name.removesuffix("_")
    return "bend" if plain in BENDS else "plain" if plain in PLAIN or name in PLAIN else "other"


def repeats(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """Check for a view that repeats or omits elements, so that a product of it may need fewer operations."""
    return sum(math.prod(t.shape) for t in made) != sum(math.prod(t.shape) for t in given)


def firm(steps: Sequence[tuple[Kind, str]]) -> list[bool]:
    """Mark the steps whose arithmetic no rearrangement of the model can save for certain.

    Products are associative and distributive: two in a row may be one, or be done in another order. A sum or a
    selection of a product needs only a part of it. So a product is firm only where all steps are products, bends and
    plain ones, with a bend between it and every other product.
    """
    marks = [False] * len(steps)
    if any(kind == "other" for kind, _ in steps):
        return marks
    run: list[int] = []
    for index, (kind, _) in enumerate(steps):
        if kind == "product":
            run.append(index)
        if (kind == "bend" or index == len(steps) - 1) and len(run) == 1:
            marks[run[0]] = True
        if kind == "bend":
            run = []
    return marks


LARGEST_MAP = 2**28
"""Elements of a storage up to which overlapping partial reads are joined; above, the largest read counts."""

Call = Callable[[torch.nn.Module, Any], Any]


class StorageView(NamedTuple):
    """A strided view of a storage, of which a share is certainly read."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    item_bytes: int
    storage_bytes: int
    share: float = 1.0

    @property
    def bytes(self) -> float:
        """Distinct bytes; a view that overlaps itself has at most those of its storage."""
        strided = zip(self.size, self.stride, strict=True)
        count = math.prod(size if stride else min(size, 1) for size, stride in strided)
        return min(count * self.item_bytes, self.storage_bytes) * self.share


class Node(NamedTuple):
    name: str
    reads: tuple[tuple[int, StorageView], ...]
    makes: tuple[int, ...]
    dtype: str
    arithmetic: Arithmetic
    kind: Kind


class Tracer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self._alive: dict[int, StorageWeakRef] = {}
        """References that keep addresses unique, without keeping the memory."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would otherwise import its compiler, which takes seconds."""
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
        options = options or {}
        result = function(*arguments, **options)
        if function.namespace == "prim":  # reads a tensor's device or the like
            return result
        name = operator_name(function)
        given, made = _strided((arguments, options)), _strided(result)
        makes = tuple(self.key(tensor) for tensor in made)
        if made and not function._schema.is_mutable and set(makes) <= {self.key(tensor) for tensor in given}:  # a view
            if repeats(given, made):
                self.nodes.append(Node(name, (), makes, "", NOTHING, "other"))
            return result
        shares = read_shares(name, arguments, result)
        reads = tuple((self.key(t), self.part(t, shares.get(id(t), 1.0))) for t in given)
        dtype = next((str(t.dtype).removeprefix("torch.") for t in given), "")
        arithmetic = arithmetic_of(function, arguments, options, result)
        self.nodes.append(Node(name, reads, makes, dtype, arithmetic, kind_of(name)))
        return result


def trace(model: torch.nn.Module, arguments: Any, call: Call | None = None) -> dict[str, Any]:
    """Find the work of `call(model, arguments)`; without `call`, of `model(*arguments)` without gradients.

    `bytes`: `read` and `written`. `flops`: operations of matrix products and convolutions by dtype, in the direct
    algorithm. `least_flops`: the same in the best known algorithm, where no rearrangement saves any (see `firm`).
    `operators`: the names of all dispatched operators, in order.
    """
    tracer = Tracer()
    kept = (value for module in model.modules() for value in vars(module).values())
    state = [*model.parameters(), *model.buffers(), *(value for value in kept if isinstance(value, torch.Tensor))]
    sources = {tracer.key(tensor) for tensor in (*_strided(arguments), *_strided(state))}
    with tracer, nullcontext() if call else torch.no_grad():
        results = _strided(call(model, arguments) if call else model(*arguments))
    made = [(tracer.key(tensor), tracer.part(tensor)) for tensor in results]
    needed = list(_needed(tracer.nodes, {key for key, _ in made}))
    read = _bytes([read for node in needed for read in node.reads if read[0] in sources])
    written = _bytes([(key, part) for key, part in made if key not in sources])
    is_firm = firm([(node.kind, node.name) for node in needed])
    return {
        "bytes": {"read": read, "written": written},
        "flops": _by_dtype(needed, "direct"),
        "least_flops": _by_dtype([node for node, sure in zip(needed, is_firm, strict=True) if sure], "least"),
        "operators": [node.name for node in tracer.nodes],
    }


def _strided(tree: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def _needed(nodes: Sequence[Node], wanted: set[int]) -> Iterator[Node]:
    """Yield the nodes that the wanted storages depend on, in order; a node without a result counts too."""
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
    """Return a lower bound on the bytes in the union of parts of one storage."""
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
