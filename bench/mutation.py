"""Small faults in functions, as data that stays valid when a function moves: drawing, finding, applying. Pure."""

import ast
import random
import types
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

SUBJECTS = {
    "compare": ("sandbox/correctness/compare.py", "sandbox/correctness/distance.py"),
    "statistics": (
        "sandbox/verdict/statistics.py",
        "sandbox/verdict/statistics.py",
        "sandbox/timing/samples.py",
    ),
    "strategies": ("agent/strategies.py",),
    "replies": ("agent/replies.py",),
    "metrics": ("evals/metrics.py",),
}
"""Files that mutants are drawn from. Only `--draw` reads them."""
PACKAGES = ("kernelwright_child", "problems", "prompts", "sandbox", "agent", "evals", "kernelwright")
EACH, SEED = 40, 2026

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "maximum": "minimum", "minimum": "maximum"}
SPOKEN = {"LOG", "logging", "warnings", "print"}
"""Calls on these only say something."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One fault, independent of the file in which its function lies."""

    id: str
    subject: str
    function: str
    """Qualified name within its module."""
    kind: str
    """`expression` or `statement`."""
    original: str
    """Source text as `ast.unparse` writes it."""
    occurrence: int
    """Which one in the function, counted from 0."""
    replacement: str
    alias: str | None = None
    """Qualified name that the function has now, after a rename."""


class Tree(NamedTuple):
    """The checkout, or a smaller one in the tests of this bench."""

    root: Path = Path(__file__).parent.parent
    packages: Sequence[str] = PACKAGES
    subjects: dict[str, tuple[str, ...]] = SUBJECTS

    @property
    def records(self) -> Path:
        """The kept mutants, one a line."""
        return self.root / "bench" / "records" / "mutants.json"

    @property
    def baseline(self) -> Path:
        """What became of each of them."""
        return self.records.with_name("mutants-baseline.json")

    @property
    def build(self) -> Path:
        """What may be deleted at any time."""
        return self.root / "build" / "mutants"

    def sources(self) -> list[Path]:
        """Each shipped module once, whatever links lead to it."""
        paths = {path.resolve() for one in self.packages for path in (self.root / one).rglob("*.py")}
        texts = {self.root / "problems" / "catalog", self.root / "prompts" / "examples"}
        return sorted(path for path in paths if not texts & set(path.parents))

    def tests(self) -> list[Path]:
        """The test files."""
        return sorted((self.root / "tests").rglob("test_*.py"))


class Place(NamedTuple):
    """A function's definition."""

    path: Path
    name: str
    node: Function


class Code:
    """All functions of a tree, by qualified name."""

    def __init__(self, tree: Tree) -> None:
        self.places: dict[str, list[Place]] = {}
        for path in tree.sources():
            for name, node in functions(ast.parse(path.read_text(encoding="utf-8")).body):
                self.places.setdefault(name, []).append(Place(path, name, node))

    @cached_property
    def _by_last_name(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for name, places in self.places.items():
            found.setdefault(name.rpartition(".")[2], []).extend(places)
        return found

    def locate(self, mutant: Mutant) -> Place | str:
        """The one function that holds the mutant's text, or the reason why there is none.

        Where no function has the qualified name, one of its last part will do: a method may have changed its class.
        """
        name = mutant.alias or mutant.function
        places = self.places.get(name) or self._by_last_name.get(name.rpartition(".")[2], [])
        holding = [place for place in places if spot(place.node, mutant)]
        if len(holding) == 1:
            return holding[0]
        return f"{len(holding)} of {len(places)} functions named {name} hold `{mutant.original}`"


def functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods of a module's body; those nested in a function belong to it."""
    for node in body:
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from functions([*node.body, *node.orelse], prefix)


class Spot(NamedTuple):
    """Where a node hangs in its parent."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        """Hang another node there."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def spots(parent: ast.AST) -> Iterator[tuple[ast.AST, Spot]]:
    """Every node below, parents first, without decorators, parameters and annotations."""
    for field, value in ast.iter_fields(parent):
        if field in {"decorator_list", "args", "returns", "annotation"} and not isinstance(parent, ast.Call):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield node, Spot(parent, field, index)
                yield from spots(node)


def spot(function: Function, mutant: Mutant) -> Spot | None:
    """Where the mutant's original hangs."""
    kind = ast.stmt if mutant.kind == "statement" else ast.expr
    same = [at for node, at in spots(function) if isinstance(node, kind) and ast.unparse(node) == mutant.original]
    return same[mutant.occurrence] if mutant.occurrence < len(same) else None


def mutated(place: Place, mutant: Mutant) -> types.CodeType:
    """The function's code with the fault in it; its lines stay those of the source."""
    module = ast.parse(place.path.read_text(encoding="utf-8"))
    node = next(
        node for name, node in functions(module.body) if name == place.name and node.lineno == place.node.lineno
    )
    at = spot(node, mutant)
    assert at is not None, mutant
    (new,) = ast.parse(mutant.replacement).body
    at.put(new if mutant.kind == "statement" else ast.parse(mutant.replacement, mode="eval").body)
    code = compile(ast.fix_missing_locations(module), str(place.path), "exec")
    return next(one for one in codes(code) if one.co_qualname == place.name and one.co_firstlineno == first_line(node))


def first_line(node: Function) -> int:
    """As the code object tells it."""
    return min(one.lineno for one in (*node.decorator_list, node))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def draw(tree: Tree) -> list[Mutant]:
    """`EACH` mutants of each subject, or all where there are fewer, always the same for the same sources."""
    code = Code(tree)
    drawn = []
    for subject, patterns in tree.subjects.items():
        paths = {path.resolve() for pattern in patterns for path in tree.root.glob(pattern)}
        places = [place for found in code.places.values() for place in found if place.path in paths]
        places.sort(key=lambda place: (str(place.path.relative_to(tree.root)), place.node.lineno))
        everything = [mutant for place in places for mutant in mutants(place) if code.locate(mutant) == place]
        picked = random.Random(f"{SEED} {subject}").sample(everything, min(EACH, len(everything)))
        drawn += [
            one._replace(id=f"{subject}-{number:02}", subject=subject)
            for number, one in enumerate(sorted(picked, key=everything.index), 1)
        ]
    return drawn


def mutants(place: Place) -> list[Mutant]:
    """All that may be drawn of a function, without number and subject."""
    found, hung = [], dict(spots(place.node))
    for node, at in hung.items():
        if _is_spoken(node, hung):
            continue
        anchor: ast.AST = node
        # A constant alone says little about its place: its nearest expression or simple statement is the text.
        while isinstance(anchor, ast.Constant | ast.Slice | ast.Starred | ast.keyword | ast.comprehension):
            if isinstance(hung[anchor].parent, Function | ast.If | ast.While | ast.For | ast.With):
                break
            anchor = hung[anchor].parent
        kind = "statement" if isinstance(anchor, ast.stmt) else "expression"
        if not isinstance(anchor, ast.stmt | ast.expr):
            continue
        original, same = ast.unparse(anchor), ast.stmt if kind == "statement" else ast.expr
        alike = [one for one in hung if isinstance(one, same) and ast.unparse(one) == original]
        for new in replacements(node, at, hung):
            at.put(new)
            text = ast.unparse(new if anchor is node else anchor)
            at.put(node)
            if text != original:
                found.append(Mutant("", "", place.name, kind, original, alike.index(anchor), text))
    return list(dict.fromkeys(found))


def _is_spoken(node: ast.AST, hung: dict[ast.AST, Spot]) -> bool:
    """Whether a node is part of a text, an exception or a line of a log."""
    while True:
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            return True
        if isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant) or ast.unparse(node.value).split(".")[0].split("(")[0] in SPOKEN
        ):
            return True
        if node not in hung:
            return False
        node = hung[node].parent


def replacements(node: ast.AST, at: Spot, hung: dict[ast.AST, Spot]) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    if isinstance(node, ast.stmt):
        yield from _statements(node, hung)
        return
    is_test = at.field == "ifs" or (at.field == "test" and not isinstance(node, ast.Compare | ast.UnaryOp))
    if is_test and isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.Constant):
        yield from _constants(node, at)
    elif at.field == "func":
        yield from _called(node)
    else:
        yield from _operations(node)


def _statements(node: ast.stmt, hung: dict[ast.AST, Spot]) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node.value):
            yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
            yield ast.Pass()
        case ast.Assign(targets=[target]) if _is_set_before(target, node, hung) and not _is_text(node.value):
            yield ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break():
            yield ast.Pass()


def _constants(node: ast.Constant, at: Spot) -> Iterator[ast.AST]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int() | float() as value:
            yield ast.Constant(value + 1 if isinstance(value, int) or not value else value * 2)
        case str() if isinstance(at.parent, ast.Compare):
            yield ast.Constant(f"{node.value}~")


def _called(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(attr=name) if name in NAMES:
            yield ast.Attribute(node.value, NAMES[name], ast.Load())


def _operations(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield ast.Compare(node.left, [*node.ops[:index], other(), *node.ops[index + 1 :]], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.BinOp() if type(node.op) in OPERATORS and not (_is_text(node.left) or _is_text(node.right)):
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        case ast.Call(func=ast.Name(id="range")):
            last = min(1, len(node.args) - 1)
            yield ast.Call(node.func, [*node.args[:last], _plus_one(node.args[last]), *node.args[last + 1 :]], [])
        case ast.Slice():
            if node.lower:
                yield ast.Slice(_plus_one(node.lower), node.upper, node.step)
            if node.upper:
                yield ast.Slice(node.lower, _plus_one(node.upper), node.step)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _plus_one(node: ast.expr) -> ast.expr:
    return ast.BinOp(node, ast.Add(), ast.Constant(1))


def _is_set_before(target: ast.expr, statement: ast.stmt, hung: dict[ast.AST, Spot]) -> bool:
    """Whether what is assigned has a value without the statement as well."""
    names = {one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    before = {
        one.id
        for one in hung
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.lineno < statement.lineno
    }
    return names <= before
