"""The code that decides a verdict, as one digest: verdicts of different code may not stand beside one another."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HARNESS = "harness"
"""The key of the digest among the versions of a run or of a verdict."""
JUDGING = ("kernelwright_child", "kernelwright.sandbox", "kernelwright.problems")
"""The packages whose code decides a verdict."""
CODE = frozenset({".py", ".cpp", ".h"})
NOT_CODE = frozenset({"catalog", "pool", "service", "__pycache__"})
"""Folders that decide nothing: data, and where judging runs."""


@cache
def harness_digest() -> str:
    """sha256 over the sources that decide a verdict, 16 hex digits. Verdicts of different harnesses are not compared.

    Any change of these sources changes it, also one that changes no verdict: better judged once too often.
    """
    digest = hashlib.sha256()
    for package in JUDGING:
        root = _folder(package)
        for place in sources(root):
            digest.update(f"{package}/{place.as_posix()}\0".encode() + (root / place).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def sources(root: Path) -> list[Path]:
    """The files below a package's folder that are code, in an order of their own; relative to it."""
    places = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.suffix in CODE]
    return [place for place in places if not NOT_CODE & set(place.parts)]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise AssertionError(f"the package {package} is part of this program")
    return Path(spec.origin).parent
