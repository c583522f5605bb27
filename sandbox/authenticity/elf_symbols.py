"""What the libraries in a folder need from others: the undefined symbols of ELF files. Reads bytes, loads nothing.

A candidate may have written the files. What is malformed is left out, and no file takes more than a bounded effort.
The table of sections is read, which linkers write and loaders do not need: who takes it out is not seen through.
"""

import os
import stat
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

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
