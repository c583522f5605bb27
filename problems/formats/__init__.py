"""Problems as other benchmarks write them down, read into ours. Text is read and checked; nothing is run.

`read_collection` reads a whole collection: each entry has its problem, or the reason why it can not be judged. A
problem of another form becomes a reference in our convention: its own text, and a few generated lines behind it.
"""

from kernelwright.problems.formats.collections import find_collection, format_of, load_address, read_collection, select
from kernelwright.problems.formats.reading import Collection, Entry
from kernelwright.problems.problem import Format, LibraryMissing

__all__ = [
    "Collection",
    "Entry",
    "Format",
    "LibraryMissing",
    "find_collection",
    "format_of",
    "load_address",
    "read_collection",
    "select",
]
