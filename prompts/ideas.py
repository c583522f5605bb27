"""The choice of ideas and snippets for a problem, by traits that its reference shows. It is not run.

Ideas are named approaches that a step can be asked to try (`data/ideas.toml`). Snippets are parts of the programs in
`snippets`, which check themselves on a GPU: the text between `// snippet: begin NAME` and `// snippet: end`, word
for word. `data/snippets.toml` says which problem, device and step are shown one.
"""

import ast
import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from kernelwright.problems import Problem
from kernelwright.problems.languages import TARGETS, Target
from kernelwright.problems.problem import PrecisionPolicy, Record
from kernelwright.problems.source import parse_module
from kernelwright.prompts.brief import Brief
from kernelwright.prompts.devices import DeviceSheet

DATA, SNIPPETS = Path(__file__).parent / "data", Path(__file__).parent / "snippets"
Bound = Literal["memory", "compute"]
COMPUTE = frozenset({"matmul", "convolution", "transposed_convolution", "attention"})
"""Operators that do many operations for each byte. Whether a problem is bound by them depends on its sizes."""


class When(Record):
    """Predicates of an idea; an empty field always holds."""

    operators: tuple[str, ...] = ()  # names of the table `operators` of `data/ideas.toml`
    bounds: tuple[Bound, ...] = ()
    targets: tuple[Target, ...] = ()
    wide: bool = False  # only where the data has more than 16 bits
    narrow: bool = False  # only where weights and inputs are cast to 16 bits
    chain: bool = False  # only where a call is a long chain of operators
    library: bool = False  # only where the operator policy allows those of a library


class Idea(Record):
    """An approach that a step can name."""

    name: str = Field(min_length=1)
    family: str = Field(min_length=1)
    """The aspect that it changes: ideas of one family compete, those of different families add up."""
    roles: tuple[Literal["propose", "improve"], ...] = Field(min_length=1)
    directive: str = ""  # the prompt's words on it; empty for the role's default
    when: When = When()


class Traits(NamedTuple):
    """Properties of a problem that the predicates of ideas and snippets use."""

    operators: tuple[str, ...]  # empty where none is known
    bound: Bound | None  # None where it is not known: operators of both kinds, or none that is known
    target: Target
    narrow: bool = False  # weights and inputs are cast to 16 bits
    chain: bool = False  # a call is a long chain of operators, a recurrence among them
    library: bool = True  # the operator policy allows those of a library


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


@cache
def idea_bank() -> tuple[Idea, ...]:
    """List all ideas, in the order of the data file."""
    return tuple(Idea.model_validate(entry) for entry in _table("ideas.toml")["idea"])


def traits_of(problem: Problem, target: Target) -> Traits:
    """Read the traits of a problem from the names that its `Model` uses.

    Compute-bound is a guess: a thin matrix product may well wait for memory. A guess only orders what is tried.
    """
    classes = _classes(problem.source)
    named = [node for part in classes for node in ast.walk(part) if isinstance(node, ast.Attribute | ast.Name)]
    used = {(node.attr if isinstance(node, ast.Attribute) else node.id).lower() for node in named}
    operators = tuple(operator for operator, names in _table("ideas.toml")["operators"].items() if set(names) & used)
    kinds = {operator in COMPUTE for operator in operators}
    bound: Bound | None = None if len(kinds) != 1 else ("compute" if kinds == {True} else "memory")
    narrow, chain = narrow_of(problem) is not None, sum(map(_operators, classes)) >= CHAIN
    free = problem.operators == "any"
    return Traits(operators=operators, bound=bound, target=target, narrow=narrow, chain=chain, library=free)


CHAIN = 8
"""Operators from which on a call is a long chain; those in a loop count as that many."""
RECURRENT = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"})
NAMESPACES = frozenset({"nn", "F", "torch"})
NO_OPERATORS = frozenset({"Parameter", "ones", "zeros", "empty", "randn", "rand", "tensor", "Sequential", "ModuleList"})


def _classes(source: str) -> list[ast.ClassDef]:
    """Return the classes of a source; input makers do not count. None where it cannot be parsed."""
    with suppress(SyntaxError):
        return [part for part in parse_module(source).body if isinstance(part, ast.ClassDef)]
    return []


def _operators(part: ast.AST) -> int:
    """Count the operators that a part of a source names, as far as they can be counted without running it."""
    found = 0
    for node in ast.iter_child_nodes(part):
        within = _operators(node)
        if isinstance(node, ast.For | ast.While | ast.ListComp | ast.GeneratorExp) and within:
            within = CHAIN
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            where = node.func.value
            name = where.id if isinstance(where, ast.Name) else getattr(where, "attr", "")
            if name in NAMESPACES and node.func.attr not in NO_OPERATORS:
                within += CHAIN if node.func.attr in RECURRENT else 1
        found += within
    return found


def applicable(ideas: Iterable[Idea], traits: Traits) -> tuple[Idea, ...]:
    """Keep those whose predicates hold; what is not known of the problem excludes nothing."""
    return tuple(idea for idea in ideas if _holds(idea.when, traits))


def _holds(when: When, traits: Traits) -> bool:
    return (
        (not when.operators or not traits.operators or bool(set(when.operators) & set(traits.operators)))
        and (not when.bounds or traits.bound is None or traits.bound in when.bounds)
        and (not when.targets or traits.target in when.targets)
        and not (when.wide and traits.narrow)
        and not (when.narrow and not traits.narrow)
        and not (when.chain and not traits.chain)
        and not (when.library and not traits.library)
    )


FORMATS = {"float16": ("fp16", 10), "bfloat16": ("bf16", 7)}  # by dtype, its short name and the bits of its fraction
MOST_ULP = 2.0
MANY, SHARE = 64, 0.5
"""The judge's bounds for outputs of 16 bits: see `docs/judge.md`. From `MANY` elements on, a share of the others."""


class HalfPrecision(NamedTuple):
    """A dtype of 16 bits that weights and inputs are cast to, and the bound that comes with it."""

    short: str  # `fp16` or `bf16`
    many: int  # elements of an output from which on these bounds hold; of fewer twice as much is allowed
    factor: float  # allowed multiple of the reference's own rounding error
    floor_ulp: float
    floor: float  # the same as a share of the output's largest magnitude


def narrow_of(problem: Problem) -> HalfPrecision | None:
    """Give the bound of a problem in 16 bits; None where weights and inputs stay as they are, or are of 32 bits."""
    if problem.dtype not in FORMATS:
        return None
    short, fraction_bits = FORMATS[problem.dtype]
    ulp = SHARE * min(MOST_ULP, problem.tolerance.floor_ulp)
    factor = SHARE * problem.tolerance.factor
    return HalfPrecision(short=short, many=MANY, factor=factor, floor_ulp=ulp, floor=ulp / 2**fraction_bits)


FIRST_CUDA = {"9.0": 12}
"""By compute capability, the first CUDA toolkit that has all of its instructions; none is too old for earlier ones."""


class Snippet(Record):
    """One entry of `snippets.toml`."""

    name: str
    mark: str = Field(min_length=1)  # a word of sources that use the snippet's instructions
    since: str = Field(pattern=r"^\d+\.\d$")
    until: str | None = Field(default=None, pattern=r"^\d+\.\d$")
    precision: PrecisionPolicy | None = None
    when: When = When()
    needs: tuple[str, ...] = ()
    helper: bool = False


@cache
def snippets() -> tuple[Snippet, ...]:
    """List all entries, in the order of the data file."""
    return tuple(Snippet.model_validate(entry) for entry in _table("snippets.toml")["snippet"])


@cache
def snippet_texts() -> dict[str, str]:
    """Read by name the marked parts of the programs; one of nothing but comments becomes a paragraph."""
    pattern = re.compile(r"^// snippet: begin (\w+)\n(.*?)^// snippet: end$", re.MULTILINE | re.DOTALL)
    texts = (path.read_text(encoding="utf-8") for path in sorted(SNIPPETS.glob("*.cu*")))
    found = {name: part.rstrip() for text in texts for name, part in pattern.findall(text)}
    for name, part in found.items():
        lines = part.splitlines()
        if all(line.startswith("// ") for line in lines):
            found[name] = " ".join(line.removeprefix("// ") for line in lines)
    return found


def capability_of(device: DeviceSheet) -> float | None:
    """Read the compute capability of a GPU; None where the sheet does not name it."""
    found = re.search(r"compute capability (\d+\.\d)", " ".join(device.facts))
    return float(found[1]) if found else None


def snippets_for(brief: Brief, room: int) -> tuple[str, ...]:
    """Choose the snippets for this step, the first ones that fit into `room` bytes; return their texts.

    A repair gets those that its source already uses, whatever the problem.
    """
    capability = capability_of(brief.device)
    if not TARGETS[brief.target].shows_snippets or capability is None:
        return ()
    traits, source = traits_of(brief.problem, brief.target), None
    if brief.role == "repair" and brief.parent is not None:
        traits, source = traits._replace(operators=(), bound=None), brief.parent.source
    chosen: set[str] = set()
    cuda = brief.versions.cuda
    for one in snippets():
        is_old = cuda is not None and int(cuda.split(".")[0]) < FIRST_CUDA.get(one.since, 0)
        has_it = float(one.since) <= capability <= float(one.until or capability)
        is_used = one.mark in source if source is not None else not one.helper
        fits = one.precision in {None, brief.problem.precision} and _holds(one.when, traits)
        if has_it and not is_old and is_used and fits:
            missing = {one.name, *one.needs} - chosen
            size = sum(len(snippet_texts()[name].encode()) + 2 for name in missing)
            if size <= room:
                room -= size
                chosen |= missing
    # A helper alone serves nothing.
    return tuple(snippet_texts()[one.name] for one in snippets() if one.name in chosen) if len(chosen) > 1 else ()
