"""The light torch/extension.h and the objects that belong to it: made by the judge once, read by builders.

The stock header brings g++ and nvcc two thousand operators, pybind11, torch::nn and the JIT, for sources that name
five. The light one (`light`) has what nearly all of them use; the compiler's stand-in adds the operators that a source
names (`kernelwright_child.building.light`). It is text: whatever the flags, there is nothing to precompile. What it
replaces by plain functions (`glue`) is compiled from torch's own headers: one set for sources that are optimised, one
for those that are not.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelwright.sandbox.build.making import LEVELS, Making
from kernelwright.sandbox.build.toolchain import GLUE, Toolchain
from kernelwright.sandbox.machine.cache import is_there
from kernelwright_child.building.flags import are_optimised

FLAG = re.compile(r"(?<!\w)-O\w*")
MACROS = "macros"
"""The file with the macros that the light header lacks; where it is, the headers are."""
OBJECTS = tuple(sorted(f"{path.stem}.o" for path in GLUE.glob("*.cpp")))
WITHOUT = re.compile(r"no_implicit_headers\s*=\s*True")
"""Words by which `load_inline` includes nothing of its own."""
EVERYTHING = (MACROS, *(f"{level}/{name}" for level in LEVELS for name in OBJECTS))


class HeaderShelf:
    """The light header of one toolchain. Nothing here raises: what can not be made is not there."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._folder = toolchain.light

    @property
    def folder(self) -> Path:
        """What builders have to be shown, read-only: the headers and the stand-ins for the compilers."""
        return self._toolchain.folder

    def missing(self, source: str) -> list[str]:
        """What of the shelf a candidate's extensions may be built with and is not there, by its name."""
        implied = "load_inline" in source and not WITHOUT.search(source)
        if not implied and "torch/extension.h" not in source:
            return []
        with contextlib.suppress(OSError):
            os.utime(self._folder)  # it is in use, so others go before it where space is short
        optimised = any(are_optimised([flag]) for flag in FLAG.findall(source))
        levels = [level for level in LEVELS if (level == "optimised") is optimised or (optimised and "cuda" in source)]
        bound = "functions" in source
        objects = [f"{level}/{name}" for level in levels for name in OBJECTS if bound or name != OBJECTS[0]]
        return self._not_there((MACROS, *objects))

    def is_ready(self) -> bool:
        """Whether all of it is there."""
        return not self._not_there(EVERYTHING)

    def prepare(self) -> bool:
        """Make all of it, which takes about 40 s of one core and 4 MB; whether it is there afterwards."""
        with self.making(self._not_there(EVERYTHING)) as making:
            making.wait()
        return self.is_ready()

    def _not_there(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not is_there(self._folder / name)]

    @contextlib.contextmanager
    def making(self, names: list[str]) -> Iterator["Making"]:
        """Have these made beside the block: what is not done when the block ends is given up, for nobody needs it yet.

        When the block begins, each either is marked as being made, or is none of this process's affair.
        """
        making = Making(self._toolchain, names)
        making.start()
        try:
            yield making
        finally:
            making.stop()
