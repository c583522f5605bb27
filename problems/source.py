"""A reference as text: its syntax, the names that it defines, the convention, and warnings. Nothing is run."""

import ast
import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernelwright.problems.problem import ProblemError

PARSING = threading.Lock()
"""In Python 3.11 parsing counts its depth for the whole interpreter, and ends with a SystemError where another thread's
comes between (https://github.com/python/cpython/issues/106905)."""


def parse_module(source: str, filename: str = "<unknown>") -> ast.Module:
    """Parse as `ast.parse` does. Raises its errors, and `SyntaxError` with the line of a null byte."""
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        text = source.split("\n", line)[line - 1]
        raise SyntaxError("Python text cannot hold null bytes", (filename, line, None, text))
    with PARSING:
        return ast.parse(source, filename=filename)


def parse_expression(text: str) -> ast.Expression:
    """Parse an expression as `ast.parse` does. Raises its errors."""
    with PARSING:
        return ast.parse(text, mode="eval")


Kind = Literal["class", "function", "value", "import", "module"]
"""How a name is bound: `value` by an assignment, a loop or a `with`; `import` by `from x import name`."""


class Binding(NamedTuple):
    """A name that a statement of the module's own level gives a meaning."""

    name: str
    kind: Kind


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the module's top-level statements in order, also those within `if`, `try`, `with`, loops and `match`."""
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(reversed(list(_inner(statement))))


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(statement, part, ()):
            if isinstance(node, ast.stmt):
                yield node
            else:
                yield from node.body


def function_in(statements: Iterable[ast.stmt], name: str) -> ast.FunctionDef | None:
    """Return the first function of that name among these statements; None without one."""
    return next((one for one in statements if isinstance(one, ast.FunctionDef) and one.name == name), None)


def bindings(statements: Iterable[ast.stmt]) -> Iterator[Binding]:
    """Yield the names that these statements of `top_level` bind, in order; a name as often as it is bound."""
    for statement in statements:
        kind: Kind = "value"
        names: Iterable[str] = ()
        match statement:
            case ast.ClassDef(name=name):
                kind, names = "class", (name,)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                kind, names = "function", (name,)
            case ast.ImportFrom(names=aliases):
                kind, names = "import", [alias.asname or alias.name for alias in aliases]
            case ast.Import(names=aliases):
                kind, names = "module", [alias.asname or alias.name.partition(".")[0] for alias in aliases]
            case ast.Assign(targets=targets):
                names = _stored(targets)
            case ast.AnnAssign(target=target, value=ast.expr()) | ast.For(target=target):
                names = _stored([target])
            case ast.With(items=items):
                names = _stored(item.optional_vars for item in items if item.optional_vars)
        yield from (Binding(name, kind) for name in names)


def _stored(targets: Iterable[ast.expr]) -> list[str]:
    nodes = (node for target in targets for node in ast.walk(target))
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the modules that import statements name, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=str() as module):
                yield node.lineno, module


def bound_names(tree: ast.Module, without: frozenset[Kind] = frozenset()) -> list[str]:
    """Return each name that the module's top level binds, once, in order, except by the kinds in `without`."""
    found = (binding.name for binding in bindings(top_level(tree)) if binding.kind not in without)
    return list(dict.fromkeys(found))


ENTRY_POINTS = {
    "Model": "add a class Model(nn.Module) with the computation in forward",
    "get_inputs": "add a function that returns the list of forward's arguments",
    "get_init_inputs": "add a function that returns the list of Model's constructor arguments ([] if it takes none)",
}
"""What every reference defines at module level, with the remedy where it does not."""

LARGEST_BYTES = 64 * 2**20


_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextmanager
def reading_below(folder: Path) -> Iterator[None]:
    """Have `read_text` refuse each file outside the folder, links followed first."""
    token = _folder.set(folder.resolve())
    try:
        yield
    finally:
        _folder.reset(token)


def read_text(path: Path) -> str:
    """Return the text of a file, with newlines as `\\n` and no byte order mark. Raises `ProblemError`."""
    try:
        exists, is_file, folder = path.exists(), path.is_file(), _folder.get()
        is_outside = folder is not None and not path.resolve().is_relative_to(folder)
    except OSError as error:  # a path that is too long, or a folder that may not be searched
        raise ProblemError(f"cannot read {path}: {_cause(error)}; check the path and its permissions") from error
    if is_outside:
        raise ProblemError(f"{path} leads out of {folder}; put the file itself there")
    if not exists:
        raise ProblemError(f"there is no file {path}; check the path, or give a catalog name")
    if not is_file:
        raise ProblemError(
            f"{path} is not a regular file; give the path of a .py file, or of a folder that holds a problem.toml"
        )
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ProblemError(f"{path} is larger than {LARGEST_BYTES // 2**20} MiB; give the right file")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ProblemError(f"cannot read {path}: {_cause(error)}; check its permissions") from error


def read_json(text: str, where: str) -> Any:
    """Return the value of a JSON text; `ProblemError` where it is none, or nested beyond the parser's depth."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ProblemError(f"{where} is JSON that is nested too deeply; give the right file") from None
    except ValueError as error:
        raise ProblemError(f"{where} is not valid JSON ({error}); correct it") from None


def check_reference(source: str, where: str, without: Collection[str] = ()) -> ast.Module:
    """Return the syntax tree of `source`; `ProblemError` where it does not parse or lacks one of `ENTRY_POINTS`.

    Those named in `without` may be missing, since what the source comes from has something else in their place.
    """
    tree = parse(source, where)
    defined = set(bound_names(tree))
    for name, remedy in ENTRY_POINTS.items():
        if name in without:
            continue
        if name == "Model" and {"Model", "ModelNew"} & defined == {"ModelNew"}:
            raise ProblemError(f"{where} has no Model; it defines ModelNew, so it is a candidate: give its reference")
        if name not in defined:
            raise ProblemError(f"{where} has no {name}; {remedy}")
    return tree


def parse(source: str, where: str) -> ast.Module:
    """Return the syntax tree of `source`; `ProblemError` where there is none."""
    try:
        return parse_module(source)
    except SyntaxError as error:
        raise ProblemError(f"{where} has a syntax error on line {error.lineno}: {error.msg}; correct it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nesting beyond the parser's depth
        raise ProblemError(f"{where} cannot be parsed as Python: {error or 'nested too deeply'}; correct it") from error


def title_of(tree: ast.Module) -> str | None:
    """Return the first line of `Model`'s docstring, if there is one."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            docstring = (ast.get_docstring(statement) or "").strip()
            return docstring.splitlines()[0] if docstring else None
    return None


def _cause(error: OSError) -> str:
    return (error.strerror or "unknown cause").lower()


CUDA = re.compile(r"cuda(:\d+)?")
DEVICE = "names a CUDA device; leave the device to the judge"
SEED = "sets the seed, so all inputs would be the same values; leave seeding to the judge"
FILES = "reads a file, which the sandbox does not show; write the values into the source"
NETWORK = "uses the network, which the sandbox cuts off; write the values into the source"
CLOCK = "reads the clock, so two runs would differ; leave it out"
DROPOUT = "drops values at random, so only what draws alike is correct; call eval() in the constructor, or leave it out"
DRAW = "draws random values in forward, so only what draws alike is correct; draw them in get_inputs"

GENERATOR = "draws with a generator that the judge does not seed, so a run cannot be repeated; draw with torch"
GENERATORS = ("np.random.", "numpy.random.", "random.", "os.urandom", "secrets.")

MODULES = {"socket": NETWORK, "urllib": NETWORK, "http": NETWORK, "requests": NETWORK, "time": CLOCK, "datetime": CLOCK}
CALLS = {
    "cuda": DEVICE,
    "manual_seed": SEED,
    "open": FILES,
    "fromfile": FILES,
    "read_text": FILES,
    "read_bytes": FILES,
    "torch.load": FILES,
    "np.load": FILES,
    "numpy.load": FILES,
    "torch.hub.load": NETWORK,
    "load_state_dict_from_url": NETWORK,
    "from_pretrained": NETWORK,
}
"""By full dotted name, or by the last name of whatever is called."""
DRAWS = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "multinomial"}


def lint_source(source: str, draws: bool = True) -> list[str]:
    """Return one warning for each faulty line, `line N: fault; remedy`, in order; none where the text looks sound.

    Unseeded random inputs are valid and give no warning: the judge seeds. Not seen: a call through an alias (the import
    of a module in `MODULES` is), and a dropout inside a library module such as `nn.TransformerEncoderLayer`.
    The text does not show whether a dropout is in training mode. `draws` is the answer of the reference's process,
    without which each dropout gives a warning.
    """
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError) as error:
        return [f"line {getattr(error, 'lineno', None) or 1}: does not parse as Python; correct it"]
    imports = ((line, module.partition(".")[0]) for line, module in imported_modules(tree))
    found = {(line, MODULES[root]) for line, root in imports if root in MODULES}
    found |= {*_calls(tree), *_draws(tree)}
    return [f"line {line}: {remark}" for line, remark in sorted(found) if draws or remark not in (DROPOUT, DRAW)]


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        name = _dotted(call.func)
        remark = CALLS.get(name) or CALLS.get(_last(name))
        if remark:
            yield call.lineno, remark
        if name.startswith(GENERATORS):
            yield call.lineno, GENERATOR
        if "dropout" in _last(name).lower():
            yield call.lineno, DROPOUT
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        constants = [one for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        yield from ((one.lineno, DEVICE) for one in constants if CUDA.fullmatch(str(one.value)))


def _draws(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "forward":
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            yield from ((call.lineno, DRAW) for call in calls if _last(_dotted(call.func)) in DRAWS)


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _dotted(node: ast.expr) -> str:
    """`torch.hub.load` as it is written; any other expression (a call's result, say) is written as `?`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{_dotted(value)}.{attribute}"
    return "?"
