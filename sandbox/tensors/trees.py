"""The structure of a result: what it is made of, told apart from its values. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernelwright.sandbox.machine.logs import one_line
from kernelwright.sandbox.tensors.values import RawTensor, Values
from kernelwright_child.wire import RESULT

NUMBER = "a number"
DEEPEST = 32
LONGEST_KEY, LONGEST_STRUCTURE = 40, 150
"""In characters, of what is shown; two structures and the words around them still fit a reason."""
SCALARS = (int, float, str, type(None))


class Flat(NamedTuple):
    """A result in a form in which two can be compared."""

    shape: Any
    """The nesting, with dicts in order of their keys and tensors and floats without their values."""
    tensors: tuple[RawTensor, ...]
    """The tensors and floats in the order of `shape`; a float is a tensor without axes."""
    labels: tuple[str, ...]
    """Where each stands: `the output`, `output 1`, `output 'mean'`."""


def is_sound(tree: Any, tensors: int, depth: int = 0) -> bool:
    """Whether this is a tree of `kernelwright_child.wire` over so many tensors: what a child sent may be anything."""
    if depth > DEEPEST or not isinstance(tree, dict) or len(tree) != 1:
        return False
    ((kind, body),) = tree.items()
    if kind in ("l", "p"):
        return isinstance(body, list) and all(is_sound(item, tensors, depth + 1) for item in body)
    if kind == "d":
        return isinstance(body, list) and all(_is_entry(entry, tensors, depth) for entry in body)
    if kind == "t":
        return type(body) is int and 0 <= body < tensors
    return isinstance(body, SCALARS if kind == "v" else str) and kind in ("v", "dtype")


def _is_entry(entry: Any, tensors: int, depth: int) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    return is_sound(entry[1], tensors, depth + 1)


def flatten(values: Values) -> Flat:
    """The structure of a result and its values in the order of the structure.

    Two dicts with the same keys are the same, in whatever order they were filled. Integers, booleans, strings and None
    belong to the structure, so they must agree exactly; floats were rounded like the elements of tensors.
    """
    if not is_sound(values.tree, len(values.tensors)):
        return Flat("malformed", (), ())
    walk = _Walk(values.tensors)
    shape = walk.over(values.tree, "")
    return Flat(shape, tuple(walk.tensors), tuple(walk.labels))


class _Walk:
    """Over one tree. No closure that calls itself: that is a cycle, and would keep gigabytes until it is collected."""

    def __init__(self, given: Sequence[RawTensor]) -> None:
        self._given = given
        self.tensors: list[RawTensor] = []
        self.labels: list[str] = []

    def over(self, node: dict[str, Any], path: str) -> Any:
        """The shape of a node; tensors and labels are noted."""
        ((kind, body),) = node.items()
        if kind == "t":
            self.tensors.append(self._given[body])
            is_changed = path.endswith(" after the call")  # keys of a result's own stand in quotes
            self.labels.append(path if is_changed else f"output {path}" if path else "the output")
            return "a tensor"
        if kind == "v" and isinstance(body, float):
            self.tensors.append(RawTensor.of(torch.tensor(body, dtype=torch.float32)))
            self.labels.append(f"number {path}" if path else "the number")
            return NUMBER
        if kind in ("l", "p"):
            items = ((f"{path}[{index}]" if path else str(index), item) for index, item in enumerate(body))
            return ("list" if kind == "l" else "tuple", tuple(self.over(item, name) for name, item in items))
        if kind == "d":
            entries = sorted(body, key=lambda entry: str(entry[0]))
            if not path and RESULT in [key for key, _ in entries]:
                named = (("" if key == RESULT else one_line(key, LONGEST_KEY), key, item) for key, item in entries)
            else:
                named = ((f"{path}[{_named(key)}]" if path else _named(key), key, item) for key, item in entries)
            return ("dict", tuple((key, self.over(item, name)) for name, key, item in named))
        return (type(body).__name__, body)


def _named(key: str) -> str:
    """A key in words that end: a child may have made it."""
    return one_line(repr(key), LONGEST_KEY)


def show(shape: Any) -> str:
    return one_line(_words(shape), LONGEST_STRUCTURE)


def _words(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    kind, body = shape
    if kind in ("list", "tuple"):
        return f"a {kind} of ({', '.join(map(_words, body))})"
    if kind == "dict":
        return "a dict of (" + ", ".join(f"{one_line(key, LONGEST_KEY)}: {_words(item)}" for key, item in body) + ")"
    return one_line(repr(body), LONGEST_KEY)
