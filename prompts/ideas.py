"""The idea bank: named approaches that a step can be told to try, each with a predicate that says where it applies.

The entries are data (`data/ideas.toml`); what a problem is made of is read from its reference, which is not run.
"""

import ast
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from kernelwright.problems import Problem
from kernelwright.problems.languages import Target
from kernelwright.problems.record.base import Record
from kernelwright.problems.record.source import parse_module
from kernelwright.prompts.half_precision import narrow_of

DATA = Path(__file__).parent / "data" / "ideas.toml"
Bound = Literal["memory", "compute"]
Operator = Literal[
    "elementwise",
    "reduction",
    "scan",
    "softmax",
    "normalisation",
    "pooling",
    "matmul",
    "convolution",
    "transposed_convolution",
    "attention",
]
COMPUTE: frozenset[Operator] = frozenset({"matmul", "convolution", "transposed_convolution", "attention"})
"""Operators that do many operations for each byte. Whether a problem is bound by them depends on its sizes."""


class When(Record):
    """Where an idea applies; an empty field always holds."""

    operators: tuple[Operator, ...] = ()
    bounds: tuple[Bound, ...] = ()
    targets: tuple[Target, ...] = ()
    wide: bool = False
    """Only where the data has more than 16 bits."""
    narrow: bool = False
    """Only where weights and inputs are cast to 16 bits."""


class Idea(Record):
    """An approach that a step can name."""

    name: str = Field(min_length=1)
    family: str = Field(min_length=1)
    """What it changes: ideas of one family compete, those of different families add up."""
    roles: tuple[Literal["propose", "improve"], ...] = Field(min_length=1)
    directive: str = ""
    """What the prompt says of it; empty for the role's default."""
    when: When = When()


class Traits(NamedTuple):
    """What the bank's predicates look at."""

    operators: tuple[Operator, ...]
    """Empty where none is known."""
    bound: Bound | None
    """None where it is not known: operators of both kinds, or none that is known."""
    target: Target
    narrow: bool = False
    """Whether weights and inputs are cast to 16 bits."""


@cache
def idea_bank() -> tuple[Idea, ...]:
    """All entries, in the order of the data file."""
    return tuple(Idea.model_validate(entry) for entry in _data()["idea"])


def traits_of(problem: Problem, target: Target) -> Traits:
    """The traits of a problem, from the names that its `Model` uses; nothing is run.

    Compute-bound is a guess: a thin matrix product may well wait for memory. A guess only orders what is tried.
    """
    used = {name.lower() for name in _names(problem.source)}
    operators = tuple(operator for operator, names in _data()["operators"].items() if set(names) & used)
    kinds = {operator in COMPUTE for operator in operators}
    bound: Bound | None = None if len(kinds) != 1 else ("compute" if kinds == {True} else "memory")
    return Traits(operators=operators, bound=bound, target=target, narrow=narrow_of(problem) is not None)


def applicable(ideas: Iterable[Idea], traits: Traits) -> tuple[Idea, ...]:
    """Those whose predicates hold; what is not known of the problem excludes nothing."""
    return tuple(idea for idea in ideas if holds(idea.when, traits))


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def holds(when: When, traits: Traits) -> bool:
    """Whether something applies to a problem of these traits."""
    return (
        (not when.operators or not traits.operators or bool(set(when.operators) & set(traits.operators)))
        and (not when.bounds or traits.bound is None or traits.bound in when.bounds)
        and (not when.targets or traits.target in when.targets)
        and not (when.wide and traits.narrow)
        and not (when.narrow and not traits.narrow)
    )


def _names(source: str) -> Iterable[str]:
    """Attributes and plain names inside the classes of a source; input makers do not count."""
    try:
        tree = parse_module(source)
    except SyntaxError:
        return
    for part in tree.body:
        if isinstance(part, ast.ClassDef):
            for node in ast.walk(part):
                if isinstance(node, ast.Attribute):
                    yield node.attr
                elif isinstance(node, ast.Name):
                    yield node.id
