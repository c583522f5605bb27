"""A finished build as bytes, to be carried to another machine's store of builds under the same digest."""

import io
import tarfile
from pathlib import Path

from kernelwright.sandbox.build import BuildStore
from kernelwright.sandbox.build.build_store import BUILD_BYTES, BUILD_FILES, LIMIT_BYTES
from kernelwright.sandbox.machine.cache import Cache, cache_root
from kernelwright.sandbox.machine.workfolder import HeldFolder

ROOM_BYTES = 2**20
"""What the archive may add to its files."""


def pack(digest: str) -> bytes | None:
    """The build of that digest out of this machine's store; None where it is not there, or not as it was kept."""
    with HeldFolder("parcel") as folder:
        if not BuildStore().restore(digest, folder):
            return None
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder, arcname=".", recursive=True)
        return packed.getvalue()


def unpack(digest: str, packed: bytes) -> bool:
    """Keep a packed build in this machine's store, unless it is there; whether it is there now.

    The bytes come from a machine that judges for us, and their content is a candidate's: nothing but plain files below
    the archive's own root is taken, and no more than the store would keep.
    """
    with HeldFolder("parcel") as folder:
        try:
            _extract(packed, folder)
        except (tarfile.TarError, OSError, EOFError):
            return False
        return BuildStore().keep(digest, folder)


def _extract(packed: bytes, folder: Path) -> None:
    left = BUILD_BYTES + ROOM_BYTES
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for number, member in enumerate(archive):
            left -= member.size
            if left < 0 or number > 2 * BUILD_FILES:
                raise tarfile.TarError("larger than any build that is kept")
            if not (member.isreg() or member.isdir()):
                raise tarfile.TarError("something else than files and folders")
            archive.extract(member, folder, filter="data")


def is_kept(digest: str) -> bool:
    """Whether this machine's store has the build."""
    return bool(digest) and Cache(cache_root() / "builds", LIMIT_BYTES).use(digest) is not None
