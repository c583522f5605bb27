"""Libraries of the extra `data`, loaded when a format needs one."""

from importlib import import_module
from typing import Any


class LibraryMissing(Exception):
    """A library that this installation lacks; the message is one sentence with the remedy."""


def library(name: str, what_for: str) -> Any:
    """The module, or `LibraryMissing`, which says what it is wanted for."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise LibraryMissing(f"{what_for} needs {package}; run pip install 'kernelwright[data]'") from None
