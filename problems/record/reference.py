"""A reference program as text: reading it, and seeing that it keeps the KernelBench convention. Nothing is run."""

import ast
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kernelwright.problems.record.defining import bound_names
from kernelwright.problems.record.problem import ProblemError
from kernelwright.problems.record.syntax import parse_module

ENTRY_POINTS = {
    "Model": "add a class Model(nn.Module) with the computation in forward",
    "get_inputs": "add a function that returns the list of forward's arguments",
    "get_init_inputs": "add a function that returns the list of Model's constructor arguments ([] if it takes none)",
}
"""What every reference defines at module level, with the remedy where it does not."""

LARGEST_BYTES = 64 * 2**20


def read_text(path: Path) -> str:
    """The text of a file, with newlines as `\\n` and no byte order mark; `ProblemError` where there is none to read."""
    try:
        exists, is_file = path.exists(), path.is_file()
    except OSError as error:  # a path that is too long, or a folder that may not be searched
        raise ProblemError(f"cannot read {path}: {_cause(error)}; check the path and its permissions") from error
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
    """The value of a JSON text; `ProblemError` where it is none, or nested beyond the parser's depth."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ProblemError(f"{where} is JSON that is nested too deeply; give the right file") from None
    except ValueError as error:
        raise ProblemError(f"{where} is not valid JSON ({error}); correct it") from None


def check_reference(source: str, where: str, without: Collection[str] = ()) -> ast.Module:
    """The syntax tree of `source`; `ProblemError` where it does not parse or lacks one of `ENTRY_POINTS`.

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
    """The syntax tree of `source`; `ProblemError` where there is none."""
    try:
        return parse_module(source)
    except SyntaxError as error:
        raise ProblemError(f"{where} has a syntax error on line {error.lineno}: {error.msg}; correct it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nesting beyond the parser's depth
        raise ProblemError(f"{where} cannot be parsed as Python: {error or 'nested too deeply'}; correct it") from error


def title_of(tree: ast.Module) -> str | None:
    """The first line of `Model`'s docstring, if there is one."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            docstring = (ast.get_docstring(statement) or "").strip()
            return docstring.splitlines()[0] if docstring else None
    return None


def _cause(error: OSError) -> str:
    return (error.strerror or "unknown cause").lower()
