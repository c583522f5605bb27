"""Names of a source that are native code of its own, and symbols that its libraries need from others.

A library that is loaded counts only where the source builds something and the library is not one that was there
before: ctypes reaches torch's own libraries as well. Of ELF files the undefined symbols are read; nothing is loaded.

A candidate may have written the files. What is malformed is left out, and no file takes more than a bounded effort.
The table of sections is read, which linkers write and loaders do not need: who takes it out is not seen through.
"""

import ast
import os
import re
import stat
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from kernelwright.problems.languages import LANGUAGES

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


MAGIC = b"\x7fELF\x02\x01"
"""Of 64 bits, little end first."""
LARGEST_FILE = 32 * 2**20
MOST_FILES, MOST_LIBRARIES, MOST_SYMBOLS, LONGEST_NAME = 2000, 32, 20_000, 1000
DYNAMIC_SYMBOLS = 11
"""The type of the section that holds them."""
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16x24xQ10xHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


def needed_symbols(folder: Path) -> set[str]:
    """Names that the shared libraries in a folder and below leave to others to define."""
    paths = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)  # noqa: PTH118
    return set().union(*map(undefined, islice(_libraries(paths), MOST_LIBRARIES)))


def _libraries(paths: Iterator[str]) -> Iterator[bytes]:
    """The contents of the ELF files among the first of the paths."""
    for path in islice(paths, MOST_FILES):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                if stat.S_ISREG(os.fstat(fd).st_mode) and file.read(len(MAGIC)) == MAGIC:
                    yield MAGIC + file.read(LARGEST_FILE)
        except OSError:
            continue


def undefined(data: bytes) -> set[str]:
    """The undefined dynamic symbols of a 64-bit little-endian ELF file; none for anything else."""
    if not data.startswith(MAGIC):
        return set()
    try:
        return _undefined(data)
    except (struct.error, OverflowError):
        return set()


def _undefined(data: bytes) -> set[str]:
    start, size, count, _ = _HEADER.unpack_from(data)
    if size != _SECTION.size:
        return set()
    sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
    table = next((section for section in sections if section[1] == DYNAMIC_SYMBOLS and section[6] < count), None)
    if table is None:
        return set()
    offset, length, names = table[4], table[5], sections[table[6]][4]
    found: set[str] = set()
    for index in range(min(length // _SYMBOL.size, MOST_SYMBOLS)):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(data, offset + index * _SYMBOL.size)
        if section == 0 and name:
            start = names + name
            found.add(data[start : start + LONGEST_NAME].partition(b"\0")[0].decode("ascii", "replace"))
    return found
