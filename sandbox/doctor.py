"""What the machine offers to judging, each thing tried rather than asked for its version."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from sandbox.children import Child, ChildGone, ChildLate
from sandbox.errors import SandboxError
from sandbox.machine import compiler, processor_name
from sandbox.peek import PeekError, read_bytes
from sandbox.settings import Settings
from sandbox.verdict import Record
from sandbox.workfolder import WorkFolder

SPACE_BYTES = 2 * 2**30


class Finding(Record):
    """One thing looked at. `missing`: nothing can be judged without it. `absent`: some targets can not be used."""

    name: str
    state: Literal["ok", "absent", "missing"]
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All findings; tries a child process, so it takes a few seconds."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    yield _judged(
        "system", platform.system() == "Linux", f"{platform.system()}, {processor_name()}, {cores} cores", "use Linux"
    )
    recent = sys.version_info >= (3, 11)
    yield _judged("python", recent, platform.python_version(), "use Python 3.11 or newer")
    yield from _torch()
    path = compiler()
    yield _needed("C++ compiler", path, "for cpp and cuda candidates: apt-get install g++, or set CXX")
    ninja = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    yield _needed("ninja", ninja, "for cpp and cuda candidates: pip install ninja")
    yield _needed("nvcc", shutil.which("nvcc"), "for cuda candidates: install the CUDA toolkit")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    room = f"{free / 2**30:.1f} GiB free in {tempfile.gettempdir()}"
    yield _judged("space", free > SPACE_BYTES, room, "free some, or set TMPDIR to a place with at least 2 GiB")
    yield _child()


def _torch() -> Iterator[Finding]:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split(".")[:2])
    yield _judged("torch", numbers >= (2, 9), torch.__version__, "pip install 'torch>=2.9'")
    if torch.cuda.is_available():
        yield Finding(name="GPU", state="ok", found=torch.cuda.get_device_name())
    else:
        yield Finding(
            name="GPU", state="absent", found="torch sees none", remedy="cuda and triton need one; cpp does not"
        )


def _child() -> Finding:
    """Start a child and read its memory from outside, as judging does."""

    def attempt() -> str:
        start = time.monotonic()
        folder = WorkFolder()
        child = Child("worker", folder, Settings())
        try:
            child.greet(time.monotonic() + 60)
            child.freeze()
            with open(f"/proc/{child.pid}/maps") as maps:
                address = int(maps.readline().partition("-")[0], 16)
            read_bytes(child.pid, address, 16)
            return f"starts in {time.monotonic() - start:.1f} s, its memory can be read; {', '.join(child.layers)}"
        finally:
            child.close()
            folder.close()

    return _tried("child process", attempt)


def _tried(name: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(name=name, state="ok", found=attempt())
    except (SandboxError, ChildGone, ChildLate, PeekError, OSError) as error:
        return Finding(name=name, state="missing", found="failed", remedy=str(error))


def _judged(name: str, good: bool, found: str, remedy: str) -> Finding:
    return Finding(name=name, state="ok" if good else "missing", found=found, remedy="" if good else remedy)


def _needed(name: str, path: str | None, remedy: str) -> Finding:
    if path is None:
        return Finding(name=name, state="absent", found="not found", remedy=remedy)
    return Finding(name=name, state="ok", found=path)
