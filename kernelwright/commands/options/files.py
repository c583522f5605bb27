"""Reading what the user names on the command line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kernelwright.commands.options.exit_codes import UserMistake

LARGEST_BYTES = 32 * 2**20


def read_text(path: str, what: str) -> str:
    """The text of a file, or of standard input for `-`. `UserMistake` with the remedy where that can not be."""
    if path == "-":
        return sys.stdin.read()
    try:
        if Path(path).stat().st_size > LARGEST_BYTES:
            raise UserMistake(f"{what} {path} is larger than {LARGEST_BYTES // 2**20} MiB; give the right file")
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise UserMistake(f"there is no {what} {path}; check the path") from None
    except OSError as error:
        raise UserMistake(f"{what} {path} can not be read ({error.strerror}); check the path and its rights") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """A block that writes below `out`: `UserMistake` with the remedy where the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UserMistake(f"cannot write {out} ({error.strerror}); choose another place") from error


@contextmanager
def opened(path: str, what: str) -> Iterator[TextIO]:
    """A file to be read line by line, however large, or standard input for `-`; only a newline ends a line."""
    if path == "-":
        yield sys.stdin
        return
    try:
        file = open(path, encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise UserMistake(f"there is no {what} {path}; check the path") from None
    except OSError as error:
        raise UserMistake(f"{what} {path} can not be read ({error.strerror}); check the path and its rights") from None
    with file:
        yield file
