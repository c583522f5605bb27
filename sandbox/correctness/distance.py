"""Distance of an output from the float64 result, and the distance that rounding alone explains. Pure.

Everything is measured in one walk over pieces that stay in the processor's cache: for large outputs, whole temporaries
cost many times more than the arithmetic.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from kernelwright.sandbox.tensors import DeviceBytes, RawTensor, Values

SMALLEST_SLICE = 64
"""Elements that a slice needs, so that the reference's error in it does not depend on luck."""
SLICE_SLACK = 1e-3
"""A slice may always be off by this share of an average slice's bound, for kernels that mix rows."""
PIECE = 2**15
"""Elements: three pieces in float64 stay in a core's cache. Up to 2**15 torch uses one thread; more threads cost
up to a hundred times more if other work keeps the cores busy."""
MOVES = 3.5
"""Factor on the root mean square of a few draws, which may be small by chance, that an element is allowed."""
GENEROUS = 1e4
"""Over a single draw, what no element is found to move beyond by some more of them: it would have had to come out three
thousand times smaller than usual."""
SLIGHT = 1e-9
"""A usual element may always be off by this share of what the norm allows each: a denormal may be taken for zero."""
DENSE = 2.0
"""Up to this ratio of root mean square to mean magnitude, a quarter of the elements or more make up the
norm, and it speaks for the usual one."""
DEVICE_PIECE = 2**25
"""On a device memory is what bounds a piece: three of them in float64 take less than a gigabyte."""


Settle = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""Masks of where a result, the reference's and the float64 one are finite."""


class Size(NamedTuple):
    """The largest magnitude, the L2 norm and the mean magnitude of a tensor, and the norm of each slice."""

    largest: float
    norm: float
    mean: float
    slices: torch.Tensor | None
    """Of each index of `slice_axis`; None where slices are too small."""
    usual: float | None = None
    """The square of the mean of the magnitudes' square roots: a few huge elements hardly move it. None where what the
    reference gives is dense: then the norm says as much."""

    @property
    def is_finite(self) -> bool:
        """False where there was a NaN or an infinity, or a sum of squares too large for float64."""
        return math.isfinite(self.norm)


class Distance(NamedTuple):
    """Sizes of the error of an output, of the error of the same-dtype reference, and of the exact result."""

    error: Size
    rounding: Size
    want: Size


class Factors(NamedTuple):
    """Multiple of the reference's own rounding error that is allowed."""

    most: float
    """For the largest element and the norms."""
    usual: float
    """For the usual element."""


class Bound(NamedTuple):
    largest: float
    norm: float
    usual: float | None
    slices: torch.Tensor | None

    @classmethod
    def of(cls, rounding: Size, want: Size, factors: Factors, unit: float, count: int) -> "Bound":
        """The errors that rounding explains in `count` elements; `unit` is the floor relative to `want`."""
        factor = factors.most
        norm = max(factor * rounding.norm, unit * want.norm)
        slight = SLIGHT * norm / math.sqrt(count) if math.isfinite(norm) else 0.0
        usual = None
        if rounding.usual is not None and want.usual is not None:
            usual = max(factors.usual * rounding.usual, unit * want.usual, slight)
        slices = None
        if rounding.slices is not None and want.slices is not None:
            slack = SLICE_SLACK * norm / math.sqrt(len(want.slices))
            # In a single slice the reference may have had luck; what it usually loses, any kernel may.
            typical = torch.nanmedian(rounding.slices / want.slices) * want.slices
            own = torch.maximum(rounding.slices, typical.nan_to_num())
            slices = torch.maximum(factor * own, unit * want.slices).clamp(min=slack)
        return cls(max(factor * rounding.largest, unit * want.largest), norm, usual, slices)

    def shares(self, error: Size) -> dict[str, float]:
        """An error's measures over their bounds; over 0 there is none."""
        slices = None
        if error.slices is not None and self.slices is not None:
            slices = float((error.slices / self.slices).nan_to_num(nan=0.0).max())
        over = (error.largest, self.largest), (error.norm, self.norm), (error.usual, self.usual), (slices, 1.0)
        named = zip(("largest", "l2", "usual", "slice"), over, strict=True)
        return {name: off / most for name, (off, most) in named if off is not None and most}

    def at_least(self, each: float, count: int) -> "Bound":
        """As wide as if each of `count` elements might be off by so much."""
        usual = None if self.usual is None else max(self.usual, each)
        slices = None if self.slices is None else self.slices.clamp(min=each * math.sqrt(count / len(self.slices)))
        return Bound(max(self.largest, each), max(self.norm, each * math.sqrt(count)), usual, slices)


class Moved:
    """Movement of each element of an output with its inputs' rounding: the root mean square over some draws."""

    def __init__(self, want: torch.Tensor) -> None:
        """`want`: the float64 result, of any shape."""
        self._want = want
        self._root = torch.zeros(want.shape, dtype=torch.float32, device=want.device)
        self.draws = 0

    def note(self, other: torch.Tensor) -> None:
        """The result on inputs that were rounded otherwise. What is not finite has not moved."""
        self.draws += 1
        for root, got, want in _flat_pieces(self._root, other, self._want):
            error = (got.double() - want).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            root.copy_(torch.hypot(root, error.float()))

    def pulled_back(self, got: torch.Tensor, generous: bool = False) -> torch.Tensor:
        """`got` in float64, each element nearer to `want` by `MOVES` times what its inputs' rounding moves it.

        Each element has its own allowance: one that hardly any rounding leaves where it is must not excuse the others.
        `generous`: by far more than that, and all by what they move on average too; for few draws.
        """
        nearer = torch.empty(got.shape, dtype=torch.float64, device=got.device)
        share, everywhere = MOVES / math.sqrt(self.draws), 0.0
        if generous:
            share = GENEROUS / math.sqrt(self.draws)
            norm = torch.linalg.vector_norm(self._root, dtype=torch.float64)
            everywhere = share * float(norm) / math.sqrt(max(1, self._root.numel()))
        for put, mine, want, root in _flat_pieces(nearer, got, self._want, self._root):
            error = mine.double() - want
            put.copy_(want + error.sign() * (error.abs() - everywhere - share * root).clamp(min=0.0))
        return nearer


def measure(
    got: torch.Tensor, near: torch.Tensor, want: torch.Tensor, settled: bool = False, undefined: bool = True
) -> Distance:
    """Distances in float64 of three tensors of one shape and any dtypes, which are left as they are.

    `settled`: what is not finite counts as `finite` says.
    """
    how = partial(finite, undefined=undefined) if settled else None
    sizes = _sizes((got, near), want, how)
    size = sizes[-1] if settled else _sizes((), near)[0]
    return Distance(*_completed(sizes, (got, near), want, size, how))


def finite(
    got: torch.Tensor, near: torch.Tensor, want: torch.Tensor, undefined: bool = True
) -> tuple[torch.Tensor, ...]:
    """Replace one reference by the other where only that is finite; where neither is, or `got` is not, all are 0.

    Without `undefined`, so are all where float64 gives NaN.
    """
    if not undefined:
        got, near, want = (torch.where(want.isnan(), 0.0, tensor) for tensor in (got, near, want))
    want = torch.where(torch.isfinite(want), want, near.to(want.dtype))
    settled = ~torch.isfinite(got) | ~torch.isfinite(want)
    near = torch.where(torch.isfinite(near), near, want.to(near.dtype))
    return tuple(torch.where(settled, 0.0, tensor) for tensor in (got, near, want))


def worst(got: torch.Tensor, want: torch.Tensor) -> tuple[int, ...]:
    """The index of the element that is off by most; what is not finite is passed over."""
    most, place, before = -1.0, 0, 0
    for mine, true in _flat_pieces(got, want):
        errors = (mine.double() - true).abs_().nan_to_num(nan=0.0, posinf=0.0)
        value, index = errors.max(0)
        if float(value) > most:
            most, place = float(value), before + int(index)
        before += errors.numel()
    steps = torch.empty(want.shape, device="meta").stride()  # `torch.unravel_index` imports sympy: half a second
    return tuple(place // step % size for step, size in zip(steps, want.shape, strict=True))


def all_within(got: torch.Tensor, near: torch.Tensor, share: float) -> bool:
    """Return whether every element is finite and off by at most this share of `near`'s; stops at the first other."""
    exact, less = torch.promote_types(near.dtype, torch.float32), share * (1 - 1e-6)
    for piece in _flat_pieces(got, near):
        mine, true = (tensor.to(exact) for tensor in piece)
        # Where anything is not finite this is NaN, and so is the largest.
        beyond = mine.sub(true).abs_().sub_(true.abs(), alpha=less)
        if not float(beyond.max()) <= 0:
            return False
    return True


def share_lost(got: torch.Tensor, near: torch.Tensor, want: torch.Tensor) -> float:
    """The share of elements off by half of their value or more, where `near` is off by a hundredth at most."""
    lost, least = 0, torch.finfo(torch.promote_types(near.dtype, torch.float32)).tiny
    for mine, theirs, true in _flat_pieces(got, near, want):
        off, rounding, size = (mine - true).abs_(), (theirs - true).abs_(), true.abs()
        # A denormal may be taken for zero.
        is_lost = (off > size / 2) & (rounding <= size / 100) & (size > least)
        lost += int(is_lost.sum())
    return lost / max(1, got.numel())


def share_of_rule(got: torch.Tensor, near: torch.Tensor, most: float) -> float:
    """The largest difference as a share of what `torch.allclose(near, got, rtol=most, atol=most)` allows.

    Infinite where either is NaN, or infinite where the other is not the same.
    """
    largest = 0.0
    for mine, true in _flat_pieces(got, near):
        other = mine.double()
        share = true.double().sub_(other).abs_().div_(other.abs().mul_(most).add_(most))
        share[mine == true] = 0.0
        largest = max(largest, float(share.nan_to_num_(nan=math.inf).max()))
    return largest


def apart(got: torch.Tensor, near: torch.Tensor) -> tuple[Size, Size]:
    """Sizes of the difference of two such tensors, and of the second."""
    sizes = _sizes((got,), near)
    difference, size = _completed(sizes, (got,), near, sizes[-1])
    return difference, size


def _completed(
    sizes: list[Size], others: Sequence[torch.Tensor], want: torch.Tensor, near: Size, settle: Settle | None = None
) -> list[Size]:
    """With usual magnitudes, where `near`, the size of what the reference gives, is not dense."""
    if near.norm <= DENSE * near.mean * math.sqrt(want.numel()):
        return sizes
    return [size._replace(usual=usual) for size, usual in zip(sizes, _usual(others, want, settle), strict=True)]


def slice_axis(shape: Sequence[int]) -> int:
    """Return the axis of which each index is judged by itself: the first that is longer than 1, else 0."""
    return next((axis for axis, size in enumerate(shape) if size > 1), 0)


def _sizes(others: Sequence[torch.Tensor], want: torch.Tensor, settle: Settle | None = None) -> list[Size]:
    """Of the difference of each of the others from `want`, and of `want` at last."""
    axis = slice_axis(want.shape)
    sliced = want.numel() >= SMALLEST_SLICE * math.prod(want.shape[: axis + 1]) > 0
    rows, count = want.shape[axis] if sliced else 1, len(others) + 1
    maxima, squares, sums = [torch.zeros(count, rows, dtype=torch.float64, device=want.device) for _ in range(3)]
    for part, tensors in _differences(others, want, rows, settle):
        for which, tensor in enumerate(tensors):
            squares[which, part] += torch.linalg.vector_norm(tensor, dim=1).square_()
            magnitudes = tensor.abs_()
            torch.maximum(maxima[which, part], magnitudes.amax(1), out=maxima[which, part])
            sums[which, part] += magnitudes.sum(1)
    norms, means = squares.sqrt(), (sums.sum(1) / want.numel()).tolist()
    return [
        Size(float(largest.max()), float(torch.linalg.vector_norm(norm)), mean, norm if sliced else None)
        for largest, norm, mean in zip(maxima, norms, means, strict=True)
    ]


def _usual(others: Sequence[torch.Tensor], want: torch.Tensor, settle: Settle | None) -> list[float]:
    # A root in float32 takes a quarter of the time, and holds what is off in anything narrower than float64.
    root = torch.float64 if others[0].dtype == torch.float64 else torch.float32
    sums = torch.zeros(len(others) + 1, dtype=torch.float64, device=want.device)
    for _, tensors in _differences(others, want, 1, settle):
        for which, tensor in enumerate(tensors):
            sums[which] += tensor.abs_().to(root).sqrt_().sum()
    return sums.div_(want.numel()).square_().tolist()


def _differences(
    others: Sequence[torch.Tensor], want: torch.Tensor, rows: int, settle: Settle | None
) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """Pieces of this many rows: which rows, the others less `want`, and `want`, in float64 and free to be changed."""
    matrices = [tensor.reshape(rows, -1) for tensor in (*others, want)]
    for part, columns in _pieces(rows, matrices[0].shape[1], _piece_of(want)):
        # Copies, since what is float64 already would be changed itself.
        *theirs, exact = (matrix[part, columns].to(torch.float64, copy=True) for matrix in matrices)
        if settle is not None:
            got, near = theirs
            *theirs, exact = settle(got, near, exact)
        yield part, [*(other.sub_(exact) for other in theirs), exact]


def _flat_pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of all of them, piece after piece; those of a contiguous tensor are a view of it."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    piece = _piece_of(flat[0])
    for start in range(0, flat[0].numel(), piece):
        yield tuple(tensor[start : start + piece] for tensor in flat)


def _piece_of(tensor: torch.Tensor) -> int:
    return DEVICE_PIECE if tensor.is_cuda else PIECE


def _pieces(rows: int, width: int, piece: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of one piece after another: whole rows where they are short, else a part of one."""
    high, wide = max(1, piece // width), min(width, piece)
    for top in range(0, rows, high):
        for left in range(0, width, wide):
            yield slice(top, min(top + high, rows)), slice(left, left + wide)


ALIKE = 1 / 32
"""Of a unit in the last place, in the norm: one element in some three hundred may be rounded the other way."""


class Cut(NamedTuple):
    """Which inputs are cut along their first axis, whose length is that of every output's."""

    inputs: frozenset[int]
    rows: int


def cuts(values: Values, result: Values) -> Iterator[Cut]:
    """Ways in which a call may fall into parts, the likeliest first; whether one holds has to be tried."""
    lengths = {raw.shape[0] if raw.shape else 0 for raw in result.tensors}
    rows = lengths.pop() if len(lengths) == 1 else 0
    if rows < 2:
        return
    fitting = [index for index, raw in enumerate(values.tensors) if raw.shape and raw.shape[0] == rows]
    if fitting:
        yield Cut(frozenset(fitting), rows)
    if len(fitting) > 1:
        yield from (Cut(frozenset({index}), rows) for index in fitting)


def part(values: Values, cut: Cut, start: int, stop: int) -> Values:
    """The arguments of the call on these indices; on a device they stay where they are."""
    return values._replace(
        tensors=tuple(
            rows_of(raw, start, stop) if index in cut.inputs else raw for index, raw in enumerate(values.tensors)
        )
    )


def rows_of(raw: RawTensor, start: int, stop: int) -> RawTensor:
    step = len(raw.data) // raw.shape[0] if raw.shape[0] else 0
    shape = (stop - start, *raw.shape[1:])
    if isinstance(raw.data, DeviceBytes):
        return raw._replace(shape=shape, data=DeviceBytes(raw.data.tensor[start * step : stop * step]))
    return raw._replace(shape=shape, data=raw.data[start * step : stop * step])


def result_rows(result: Values, start: int, stop: int) -> Values:
    return result._replace(tensors=tuple(rows_of(raw, start, stop) for raw in result.tensors))


def spans(rows: int, step: int) -> list[tuple[int, int]]:
    """Parts of `step` indices each that cover all; the last may overlap the one before it."""
    starts = [*range(0, rows - step, step), rows - step]
    return [(start, start + step) for start in starts]


def are_alike(got: Values, want: Values) -> bool:
    """Return whether two results of one dtype differ by no more than a few roundings that fell the other way.

    What is right within a tolerance is not yet the same function: at 16 bits, statistics of half a batch are as near to
    those of all of it as rounding is.
    """
    pairs = zip((raw.tensor() for raw in got.tensors), (raw.tensor() for raw in want.tensors), strict=True)
    return all(_are_alike(one, other) for one, other in pairs if other.is_floating_point() and other.itemsize <= 2)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    difference, size = apart(one, other)
    return not size.is_finite or difference.norm <= ALIKE * torch.finfo(other.dtype).eps * size.norm


class Joined:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._tree: dict[str, object] = {}
        self._tensors: list[torch.Tensor] = []

    def put(self, result: Values, start: int, stop: int) -> None:
        found = [raw.tensor() for raw in result.tensors]
        if not self._tensors:
            self._tree = result.tree
            self._tensors = [torch.empty(self._rows, *t.shape[1:], dtype=t.dtype, device=t.device) for t in found]
        for whole, rows in zip(self._tensors, found, strict=True):
            whole[start:stop] = rows

    def values(self) -> Values:
        return Values(self._tree, tuple(map(RawTensor.of, self._tensors)))
