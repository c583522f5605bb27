"""Optional libraries, each by the extra that brings it; those of `data` are loaded when a format needs one."""

from importlib import import_module
from typing import Any


class LibraryMissing(Exception):
    """A library that this installation lacks; the message is one sentence with the remedy."""

    @classmethod
    def of_extra(cls, what_for: str, package: str | None, extra: str) -> "LibraryMissing":
        """What is wanted, the package that it needs, and the extra of ours that brings it."""
        return cls(f"{what_for} needs {package}; run pip install 'kernelwright[{extra}]'")


def library(name: str, what_for: str) -> Any:
    """The module, or `LibraryMissing`, which says what it is wanted for."""
    try:
        return import_module(name)
    except ImportError:
        raise LibraryMissing.of_extra(what_for, name.partition(".")[0], "data") from None
