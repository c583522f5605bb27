"""Finished builds by content: a candidate that was built once is not built again.

The judge copies a build folder in after its builder has ended, and out into a fresh work folder before a worker
starts. No child ever sees the store. What a candidate built is found again only under its own whole source, so nobody
reads or changes the products of another.
"""

import json
import logging
import os
from pathlib import Path

from kernelwright.sandbox.build.toolchain import Toolchain
from kernelwright.sandbox.machine.cache import READING, Bounds, FolderStore, digest_of

LOG = logging.getLogger("kernelwright.sandbox.build")
INDEX = "built.json"
"""The builder's list of what it built, see `kernelwright_child.building.inline`; it imports torch, and is not imported
here."""

LIMIT_BYTES = 2 * 2**30
BUILD_BYTES, BUILD_FILES, BUILD_DEPTH = 2**29, 4096, 8
"""A build above these is not kept."""
FORMAT = "2"


class BuildStore(FolderStore):
    """Nothing here raises for what is on disk: a build that can not be kept or read is simply built again."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("builds", limit_bytes, Bounds(BUILD_BYTES, BUILD_FILES, BUILD_DEPTH))

    @staticmethod
    def key(source: str, toolchain: Toolchain | None, **more: str) -> str:
        """What a finished build depends on, as 64 hex digits: the source, the toolchain, and what the caller adds.

        To add: the constructor's arguments, the architecture of the device, settings that change how things are built.
        """
        facts = [FORMAT, source, toolchain.digest if toolchain else "", str(toolchain and toolchain.nvcc)]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(more.items())])

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a finished build folder in; the builder must have ended. False where it is not fit to be kept."""
        if self._cache.use(key) is None and not _is_complete(folder):
            LOG.info("the build in %s is not kept: not all that its index names lies in it", folder)
            return False
        return super().keep(key, folder)

    def keep_more(self, key: str, folder: Path) -> bool:
        """The same, in place of what there is under this key: something was built that is not in it."""
        if not _is_complete(folder):
            return False
        self.forget(key)
        return self.keep(key, folder)


def _is_complete(build: Path) -> bool:
    """Whether all that the builder has made lies in the build folder: else a worker elsewhere could not load it.

    What could not be built is replayed from its words, and needs nothing more.
    """
    try:
        with open(os.open(build / INDEX, READING), "rb") as file:
            built = json.loads(file.read(BUILD_BYTES))
        names = [entry["path"] for entry in built.values() if "error" not in entry]
        return all(".." not in Path(name).parts and (build / name).is_file() for name in names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
