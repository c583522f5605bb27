"""The operations of matrix products and convolutions: those of the direct algorithm, and the fewest known. Pure.

A multiplication with the addition that follows it counts as two operations, as in every vendor's peak.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Arithmetic(NamedTuple):
    """Operations of one product."""

    direct: int
    """Of the direct algorithm, without what falls outside the image or between the strides."""
    least: int
    """Of the best algorithm known for large sizes; its transforms are left out where only their limit is known."""

    def __add__(self, other: tuple[object, ...]) -> "Arithmetic":
        if not isinstance(other, Arithmetic):
            return NotImplemented
        return Arithmetic(self.direct + other.direct, self.least + other.least)


NOTHING = Arithmetic(0, 0)


def product(batch: int, rows: int, inner: int, columns: int) -> Arithmetic:
    """A batch of products of [rows, inner] and [inner, columns]."""
    return Arithmetic(2 * batch * rows * inner * columns, int(2 * batch * fewest(rows, inner, columns)))


def fewest(rows: float, inner: float, columns: float) -> float:
    """Multiply-adds of a matrix product by Strassen's recursion in Winograd's form, where it saves any.

    Seven half-sized products and 15 additions of blocks: 4 of the left factor's, 4 of the right's, 7 of the result's
    (S. Winograd, On multiplication of 2x2 matrices, Linear Algebra and its Applications 4, 1971). An addition takes the
    place of a multiply-add.
    """
    plain = rows * inner * columns
    if min(rows, inner, columns) < 2:
        return plain
    additions = (4 * rows * inner + 4 * inner * columns + 7 * rows * columns) / 4
    return min(plain, 7 * fewest(rows / 2, inner / 2, columns / 2) + additions)


class ConvolutionAxis(NamedTuple):
    """What a convolution does along one axis."""

    pairs: int
    """Pairs of a position and a tap that meet an element: neither padding nor cropped away."""
    near: int
    """Positions with any such pair; of the output, for a transposed convolution of the input."""
    far: int
    """Elements that are met; of the input, for a transposed convolution of the output."""


class Window(NamedTuple):
    """The parameters of a window along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def meet(self, near: int, far: int) -> ConvolutionAxis:
        """Position n meets with tap k the element n * stride - padding + k * dilation, where 0 <= it < far."""
        pairs, positions, elements = 0, [], []
        for tap in range(self.kernel):
            shift = tap * self.dilation - self.padding
            first = max(0, -(shift // self.stride))
            end = min(near, (far - 1 - shift) // self.stride + 1)
            if first >= end:
                continue
            pairs += end - first
            positions.append((first, end))
            # Elements of one remainder lie a stride apart: an interval of quotients.
            quotient, remainder = divmod(shift, self.stride)
            elements.append((remainder, first + quotient, end + quotient))
        by_remainder = {r: _union((a, b) for other, a, b in elements if other == r) for r, _, _ in elements}
        return ConvolutionAxis(pairs, _union(positions), sum(by_remainder.values()))


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """How many whole numbers lie in at least one of the half-open intervals."""
    total, reached = 0, None
    for first, end in sorted(intervals):
        start = first if reached is None else max(first, reached)
        if end > start:
            total += end - start
            reached = end
    return total


class Convolution(NamedTuple):
    """A convolution of any number of axes, plain or transposed."""

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
        """Direct: a multiply-add for each tap that meets an element, for each pair of channels.

        Least: a multiplication for each output and pair of channels, which minimal filtering approaches as its tiles
        grow (S. Winograd, Arithmetic Complexity of Computations, 1980: m + r - 1 for m outputs of r taps) and the
        Fourier transform too; summed over the channels as a matrix product is.
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
            return [window.meet(near=own, far=made) for window, own, made in sizes]
        return [window.meet(near=made, far=own) for window, own, made in sizes]


def attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> Arithmetic:
    """Scores and weighted values of [batch, heads, tokens, features]; masks save nothing that is counted here."""
    batch = query[0] * query[1]
    return product(batch, query[2], query[3], key[2]) + product(batch, query[2], key[2], value[3])
