"""A call in parts along the first axis, for references that compute each index of it apart from the others. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kernelwright.sandbox.correctness.distance import apart
from kernelwright.sandbox.tensors.values import DeviceBytes, RawTensor, Values

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
    """Whether two results of one dtype differ by no more than a few roundings that fell the other way.

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
