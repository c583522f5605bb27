"""Library calls and native code that a source's `ModelNew.forward` can lead to, read from the text alone. Pure.

A loaded library is native code of the candidate only if the source builds something and the library was not there
before: ctypes reaches torch's own libraries too.

A text can hide a name: it can build it from parts, read it from a file, or reach an object by another name. So a
finding counts, and no finding means little. Names are followed, not values: every meaning of a used name counts as
reached, so nothing is missed that has its name in the text. All takes time in proportion to the source, since it runs
in the judge's own process.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from kernelwright.problems.languages import LANGUAGES
from kernelwright.problems.source import parse_module
from kernelwright.sandbox.authenticity.operator_names import (
    ARRAY_MODULES,
    ARRAY_PLUMBING,
    C_COMMENT,
    LAYERS,
    OPERATOR_IN_CPP,
    OPERATORS,
    PLAIN_BLAS,
    RECORDING_SPACES,
    REDUCTIONS,
    SILENCING,
    TENSOR_MODULES,
    TORCH_SPACES,
    VENDOR_NAME,
    WORD,
)

BUILDERS = {"load_inline", "load"}
"""Calls that compile native code of a candidate."""
LOADERS = {"CDLL", "PyDLL", "load_library", "LoadLibrary"}
"""Calls that open a library of any origin."""
READERS = {"torch", "json", "numpy", "np", "pickle", "marshal", "yaml", "tomllib"}
"""Modules whose `load` reads a file."""
SPAWNERS = {"subprocess", "system", "popen", "posix_spawn", "execv", "execvp"}
"""Names by which a source may start a compiler itself."""
DECORATORS = {words for one in LANGUAGES.values() for words in one.decorators}
BODIES = frozenset().union(*(one.bodies for one in LANGUAGES.values()))
COMPILERS = {one.module for one in LANGUAGES.values() if one.compiled_by == "asking"}
"""Modules whose `compile` makes a kernel."""
FOREIGN = {"torch", "numpy", "np", "scipy", "find_library", "modules"}
"""Names in a library's path that say that it was there before."""
FOREIGN_FILE = re.compile(
    r"\blib(torch\w*|c10\w*|mkl\w*|\w*blas\w*|\w*lapack\w*|dnnl|(?:cudnn|cusolver|cusparse|cufft)\w*|cuda|[cm]|dl)"
    r"(?:[-.][-.\w]*)?\.so"
)
Assignment = tuple[list[str], ast.AST]
"""The names that are bound, and the value."""


def own_names(tree: ast.Module) -> tuple[set[str], bool]:
    """Names that are assigned native code, or something taken from it, and Triton's kernels; and whether any is built.

    One pass over what is assigned: what follows from what is looked up by name.
    """
    nodes = list(ast.walk(tree))
    assignments = [found for node in nodes if (found := assignment(node)) is not None]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    builds = any(_is_builder(call) for call in calls)
    compiles = builds or any(name in SPAWNERS for node in nodes for name in named(node))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))}
    loading = _Loading(assignments, compiles, makers=_makers(nodes))
    leads: dict[str, list[list[str]]] = defaultdict(list)
    for targets, value in assignments:
        holders, made = _chain(value, loading)
        own.update(targets if made else ())
        for holder in holders:
            leads[holder].append(targets)
    own = _spread(own, leads)
    return own, builds or bool(own) or any(loading.is_own(call) for call in calls)


class _Loading:
    def __init__(self, assignments: list[Assignment], compiles: bool, makers: set[str]) -> None:
        self._compiles, self._makers = compiles, makers
        built, foreign = set(), set()
        leads: dict[str, list[list[str]]] = defaultdict(list)
        for targets, value in assignments:
            for node in ast.walk(value):
                if isinstance(node, ast.Call) and _is_builder(node):
                    built.update(targets)
                elif _is_foreign(node):
                    foreign.update(targets)
                for name in named(node):
                    leads[name].append(targets)
        self._built = _spread(built, leads)
        self._foreign = _spread(foreign, leads)

    def is_own(self, call: ast.Call) -> bool:
        """Return whether a call opens a library that the source builds, or makes a kernel of its functions."""
        if last(call.func) in self._makers:
            return True
        if last(call.func) not in LOADERS or not call.args or not self._compiles:
            return False
        path = list(ast.walk(call.args[0]))
        words = {name for node in path for name in named(node)}
        if words & self._built or any(isinstance(node, ast.Call) and _is_builder(node) for node in path):
            return True
        none = isinstance(path[0], ast.Constant) and not isinstance(path[0].value, str | bytes)
        return not (none or words & self._foreign or any(map(_is_foreign, path)))


def _is_jit(mark: ast.expr) -> bool:
    found = names(mark)
    return any(words <= found for words in DECORATORS)


def compiled_nodes(tree: ast.AST) -> set[int]:
    """Find the syntax, by identity, in loops whose bodies a language compiles. Other code runs."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    loops = (
        node
        for language in LANGUAGES.values()
        if language.compiled_loops
        for function in functions
        if any(language.module in names(mark) for mark in function.decorator_list)
        for node in ast.walk(function)
        if isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and language.compiled_loops <= names(node.iter.func)
    )
    return {id(inner) for loop in loops for statement in loop.body for inner in ast.walk(statement)}


def _kernel_nodes(tree: ast.AST) -> set[int]:
    """Find the syntax, by identity, in functions that a language compiles whole."""
    kernels = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {id(inner) for node in kernels if any(map(_is_jit, node.decorator_list)) for inner in ast.walk(node)}


def _makers(nodes: list[ast.AST]) -> set[str]:
    """Functions that hold the body of a kernel: what they return is one."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    bodies = {id(node) for node in functions if any(names(mark) & BODIES for mark in node.decorator_list)}
    return {
        node.name for node in functions if any(id(inner) in bodies for inner in ast.walk(node) if inner is not node)
    }


def _is_foreign(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(FOREIGN_FILE.search(node.value))
    return bool(FOREIGN.intersection(named(node)))


def _is_builder(call: ast.Call) -> bool:
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    if last(call.func) == "compile" and holder is not None and last(holder) in COMPILERS:
        return True
    return last(call.func) in BUILDERS and (holder is None or last(holder) not in READERS)


def _chain(value: ast.AST, loading: _Loading) -> tuple[list[str], bool]:
    """The names that a value is taken from, by attribute or index; and whether it is native whatever they are."""
    holders: list[str] = []
    while True:
        match value:
            case ast.Attribute(value=holder, attr=name):
                holders.append(name)
                value = holder
            case ast.Subscript(value=holder):
                value = holder
            case ast.Call(args=[first, *_]) if last(value.func) == "getattr":
                value = first
            case ast.Call():
                return holders, _is_builder(value) or loading.is_own(value)
            case _:
                return [*holders, *([value.id] if isinstance(value, ast.Name) else [])], False


def _spread(start: Iterable[str], leads: dict[str, list[list[str]]]) -> set[str]:
    """All names that follow from the first ones; each is followed once."""
    found = set(start)
    todo = list(found)
    while todo:
        for targets in leads.pop(todo.pop(), ()):
            new = set(targets) - found
            found |= new
            todo += new
    return found


def assignment(node: ast.AST) -> Assignment | None:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [name for target in targets for name in _targets(target)], value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            return list(_targets(target)), value
    return None


def _targets(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(getattr(node, "ctx", None), ast.Store) and last(node):
            yield last(node)


def named(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (name,)
        case ast.Constant(value=str() as text) if text.isidentifier():  # getattr(self, "name")
            return (text,)
    return ()


def names(expression: ast.AST) -> set[str]:
    return {name for node in ast.walk(expression) for name in named(node)}


def last(expression: ast.AST) -> str:
    """The last part of a dotted name; empty for what is none."""
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


REGISTRY = "ops"
"""`torch.ops`, where a library that was built registers its operators."""
ENTRY = ("ModelNew", "forward")
MOST_NODES = 100_000
"""Of syntax; a candidate has some thousands, and ten times as many take the judge a second."""


class Unreadable(Exception):
    """A source that is not followed; the text says why."""


class Reach(NamedTuple):
    tree: ast.Module
    """All of the source."""
    nodes: tuple[ast.AST, ...]
    """All syntax that can be reached."""
    own: frozenset[str]
    """Names of native code of the candidate."""
    own_calls: frozenset[int]
    """Lines of reached calls to it."""
    builds: bool
    """Whether native code is built anywhere, reached or not."""
    handlers: tuple[tuple[int, frozenset[int]], ...]
    """Reached `except` clauses: their line, and the lines of their bodies."""


@lru_cache(maxsize=1)
def reach(source: str) -> Reach:
    """Follow names from `ModelNew.forward`. Raises `Unreadable` for a source that does not parse, or is too large."""
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable("the source cannot be read") from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise Unreadable("the source is too large to be read for what it calls")
    own, builds = own_names(tree)
    nodes = _reached(tree)
    native = own | ({REGISTRY} if builds else set())
    holding = _holding(tree, native, without={id(node.value) for node in ast.walk(tree) if torch_space(node)})
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    return Reach(
        tree=tree,
        nodes=tuple(nodes),
        own=frozenset(own),
        own_calls=frozenset(call.lineno for call in calls if id(call.func) in holding),
        builds=builds,
        handlers=tuple((handler.lineno, _lines(handler.body)) for handler in handlers),
    )


def _reached(tree: ast.Module) -> list[ast.AST]:
    meanings = _meanings(tree)
    todo: list[ast.AST] = [
        method
        for entry in ast.walk(tree)
        if isinstance(entry, ast.ClassDef) and entry.name == ENTRY[0]
        for method in entry.body
        if isinstance(method, ast.FunctionDef) and method.name == ENTRY[1]
    ]
    nodes: list[ast.AST] = []
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        nodes.append(node)
        todo += ast.iter_child_nodes(node)
        for name in named(node):
            todo += meanings.pop(name, ())  # once: a name means the same wherever it is used
    return nodes


def _meanings(tree: ast.Module) -> dict[str, list[ast.AST]]:
    """By name or attribute: the functions and classes of that name, and what is assigned to it."""
    meanings: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name != ENTRY[0]:
            meanings[node.name].append(node)
        targets, value = assignment(node) or ([], node)
        for name in targets:
            meanings[name].append(value)
    return meanings


def _holding(tree: ast.Module, wanted: set[str], without: set[int]) -> set[int]:
    """The nodes, by identity, that mention one of the names or hold one that does."""
    holding: set[int] = set()
    for node in reversed(list(ast.walk(tree))):  # children first
        mentions = not wanted.isdisjoint(named(node)) and id(node) not in without
        if mentions or any(id(child) in holding for child in ast.iter_child_nodes(node)):
            holding.add(id(node))
    return holding


def torch_space(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return whether this is a namespace of `torch.ops` that comes with torch."""
    return isinstance(node, ast.Attribute) and node.attr in TORCH_SPACES and last(node.value) == REGISTRY


def _lines(body: Iterable[ast.stmt]) -> frozenset[int]:
    return frozenset(node.lineno for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt))


class LibraryCall(NamedTuple):
    shown: str
    """As the source has it."""
    operator: str
    """By torch's name."""
    line: int
    constructs: bool
    """Whether it runs when the module is loaded or the model constructed, and so in no call."""


def library_calls(found: Reach) -> list[LibraryCall]:
    """Operators of torch as functions, methods, references to them or `@`, and layers that are called.

    Layers that only hold weights do not count, nor do operators in a loop that a language compiles.
    """
    reader = _Reader(found)
    compiled = compiled_nodes(found.tree)
    constructing = _constructing(found.tree)
    return [
        LibraryCall(shown, operator, getattr(node, "lineno", 0), id(node) in constructing and reader.runs(node))
        for node in found.nodes
        if id(node) not in compiled
        for shown, operator in reader.read(node)
    ]


def array_calls(found: Reach) -> list[LibraryCall]:
    """What numpy and scipy compute: their functions that are called or named, and each way to one that text hides."""
    reader = _Reader(found)
    constructing = _constructing(found.tree)
    return [
        LibraryCall(shown, shown, getattr(node, "lineno", 0), id(node) in constructing and reader.runs(node))
        for node in found.nodes
        for shown in reader.arrays(node)
    ]


def cpp_operators(found: Reach) -> set[str]:
    """torch's operators that C++ in the source calls, reached or not."""
    texts = map(_without_comments, _texts(found.tree))
    return {call[1] or call[2] or call[3] for text in texts for call in OPERATOR_IN_CPP.finditer(text)}


def silencers(found: Reach, symbols: set[str]) -> set[str]:
    """What turns off torch's records of operators, by name in the source or as a symbol that a library needs."""
    mangled = {match[0] for name in symbols if name.startswith("_ZN2at") and (match := SILENCING.search(name))}
    return {word for word in _words(found.tree) if SILENCING.fullmatch(word)} | mangled


def vendor_words(found: Reach) -> set[str]:
    """Products of BLAS, LAPACK, oneDNN, MKL, cuBLAS, cuDNN and their like that the source names, comments aside."""
    return {word for word in _words(found.tree) if VENDOR_NAME.match(word)}


def _words(tree: ast.Module) -> set[str]:
    words = {last(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}
    for text in _texts(tree):
        words.update(WORD.findall(_without_comments(text)))
    return words


def vendor_symbols(symbols: set[str]) -> set[str]:
    """Those of the symbols that a library needs from others which are products of such a library."""
    mangled = re.compile(r"_ZNK?(?:\d+\w*?)?(?:4dnnl|5ideep|7cpublas|4cuda4blas)")
    return {name for name in symbols if VENDOR_NAME.match(name) or PLAIN_BLAS.match(name) or mangled.match(name)}


def dispatched(symbols: set[str]) -> set[str]:
    """torch's operators that a library calls, by the symbols that it needs, as `at::_ops::NAME::call`.

    The name of an operator is followed by that of its overload.
    """
    found: set[str] = set()
    for name in symbols:
        shim = re.match(r"aoti_torch_[a-z]+_(\w+)", name)
        for part in [shim[1]] if shim else _parts(name):
            words = part.strip("_").removeprefix("linalg_").split("_")
            starts = ("_".join(words[:end]) for end in range(len(words), 0, -1))
            found.update([next((start for start in starts if start in OPERATORS), "")])
    return found - {""}


def _parts(symbol: str) -> list[str]:
    """The nested names of a mangled symbol of `at`."""
    at = re.match(r"_ZNK?2at", symbol)
    place, parts = at.end() if at else len(symbol), list[str]()
    while length := re.compile(r"\d{1,3}").match(symbol, place):
        place = length.end() + int(length[0])
        parts.append(symbol[length.end() : place])
    return parts


class _Reader:
    def __init__(self, found: Reach) -> None:
        self._own = found.own
        self._origins = _origins(found.tree)
        self._kernels = _kernel_nodes(found.tree)
        self._methods = own_methods(found.tree)
        self._layers = {name: op for node in ast.walk(found.tree) for name, op in _layers(node)}
        calls = [node for node in found.nodes if isinstance(node, ast.Call)]
        self._called = {id(node.func) for node in calls}
        self._of_shapes = {id(node.func) for node in calls if node.args and last(node.args[0]) == "shape"}
        self._inner = {id(node.value) for node in found.nodes if isinstance(node, ast.Attribute)}

    def read(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """The callee of a node, or the name that it refers to: as it is written, and the operator."""
        match node:
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                yield "@", "matmul"
            case ast.Call(func=ast.Attribute(attr=name) as function):
                if self._is_operator(function):
                    yield name, name
                elif last(function.value) == "self" and name in self._layers:
                    yield name, self._layers[name]
            case ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str() as name), *_]):
                if name in OPERATORS and self._origin(holder) in TENSOR_MODULES:
                    yield name, name
            case ast.Name(id=name) if name in self._origins:
                module, _, operator = self._origins[name].rpartition(".")
                if operator in OPERATORS and module.partition(".")[0] in TENSOR_MODULES:
                    yield name, operator
            case ast.Attribute(attr=name) if torch_space(node):
                if name not in RECORDING_SPACES | {"aten", "prims"}:  # of these, operators count by name
                    yield f"{REGISTRY}.{name}", f"{name}::"
            case ast.Attribute(attr=name) if id(node) not in self._called:
                if self._origin(node) in TENSOR_MODULES and self._is_operator(node):
                    yield name, name

    def arrays(self, node: ast.AST) -> Iterator[str]:
        """The name of what numpy or scipy computes at a node."""
        match node:
            case ast.Attribute() | ast.Name() if id(node) not in self._inner:
                name = self._dotted(node)
                shape = isinstance(node, ast.Attribute) and node.attr == "prod" and id(node) in self._of_shapes
                if name.partition(".")[0] in ARRAY_MODULES and not ARRAY_PLUMBING.fullmatch(name) and not shape:
                    yield name
            case ast.Constant(value=str() as name) if name.partition(".")[0] in ARRAY_MODULES and name.isidentifier():
                yield name

    def runs(self, node: ast.AST) -> bool:
        """Return whether this is executed at its place; a function that is only named is not."""
        named = isinstance(node, ast.Name | ast.Attribute) and id(node) not in self._called
        return not named and not (isinstance(node, ast.Call) and last(node.func) == "getattr")

    def _is_operator(self, function: ast.Attribute) -> bool:
        if function.attr not in OPERATORS or last(function.value) in self._own or id(function) in self._methods:
            return False
        origin = self._origin(function)
        if function.attr in REDUCTIONS and not origin and id(function) in self._kernels:
            return False
        return origin in ("", *TENSOR_MODULES) and not _is_registered(function)

    def _origin(self, expression: ast.AST) -> str:
        """The package that the first part of a dotted name was imported from; empty where it was not imported."""
        return self._dotted(expression).partition(".")[0]

    def _dotted(self, expression: ast.AST) -> str:
        """The name of what was imported, in full; empty where the first part was not imported."""
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        name = expression.id if isinstance(expression, ast.Name) else ""
        stock = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "np": "numpy", "numpy": "numpy"}
        origin = self._origins.get(name, stock.get(name, ""))
        return ".".join([origin, *reversed(parts)]) if origin else ""


MOVERS = {
    *("setattr", "__setattr__", "__getattribute__", "__getattr__", "__dict__", "__class__", "vars", "type", "globals")
}
"""Names by which a method may come to mean another function, or `self` another object."""


def own_methods(tree: ast.Module) -> set[int]:
    """Find the attributes, by identity, that name methods of the source's classes: of `self`, or of an instance.

    An instance is a name that is bound once, to a call of a class. None where the source may replace what a name means.
    """
    nodes = list(ast.walk(tree))
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    methods = {name: {one.name for one in _functions(of)} for name, of in classes.items()}
    bound = Counter(name for node in nodes for name in _bound(node))
    unbound = any(isinstance(node, ast.Attribute) and last(node.value) in classes for node in nodes)
    if unbound or bound["self"] or any(name in MOVERS for node in nodes for name in named(node)):
        return set()
    instances = {
        target: methods[last(value.func)]
        for targets, value in filter(None, map(assignment, nodes))
        if isinstance(value, ast.Call) and last(value.func) in classes
        for target in targets
        if bound[target] == 1
    }
    inside = {
        id(node): methods[name]
        for name, of in classes.items()
        for function in _functions(of)
        if [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)].count("self") == 1
        and function.args.args[:1]
        and function.args.args[0].arg == "self"
        and not function.decorator_list
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return {
        id(node)
        for node in nodes
        if isinstance(node, ast.Attribute)
        and not bound[node.attr]
        and node.attr in inside.get(id(node), instances.get(last(node.value), ()))
    }


def _functions(of: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in of.body if isinstance(node, ast.FunctionDef)]


def _bound(node: ast.AST) -> Iterator[str]:
    """The names and attributes that a node binds, `self` as the first argument of a method aside."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.arg(arg=name) if name != "self":
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]


def _is_registered(function: ast.Attribute) -> bool:
    """Return whether it is an operator of a namespace in `torch.ops` that is not torch's."""
    space = function.value
    return isinstance(space, ast.Attribute) and last(space.value) == REGISTRY and not torch_space(space)


def _origins(tree: ast.Module) -> dict[str, str]:
    """By the name that an import binds, the dotted name of what it is."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                origins[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return origins


def _layers(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Attributes that are assigned one of torch's layers, with its operator."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        made = last(node.value.func)
        if made in LAYERS:
            yield from ((last(target), LAYERS[made]) for target in node.targets)


def _constructing(tree: ast.Module) -> set[int]:
    """Nodes that run when the module is loaded or a model is constructed, without functions that are defined there."""
    found: set[int] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if not inner or getattr(child, "name", "") == "__init__":
                found.add(id(child))
                todo.append(child)
    return found


def _texts(tree: ast.Module) -> Iterator[str]:
    """The string constants that are no docstrings: among them what is compiled."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def _without_comments(text: str) -> str:
    return C_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
