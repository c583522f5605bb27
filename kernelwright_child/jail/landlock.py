"""Landlock: a process gives up files, TCP and signals for itself and all that it will start. Standard library only.

Used where namespaces are not to be had. See landlock(7); the ABI says what the kernel can restrict.
"""

from __future__ import annotations

import ctypes
import os

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
"""System call numbers, the same on all architectures."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READ = EXECUTE | READ_FILE | READ_DIR
ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights by ABI; 2 added linking across folders, 3 truncation, 5 ioctl on devices."""
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
"""Rights that make sense on a file; the others are of folders, and the kernel refuses them on a file."""
TCP_ABI, BOTH_TCP = 4, 0b11
SCOPE_ABI, SIGNALS_AND_ABSTRACT_SOCKETS = 6, 0b11
PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi(libc: ctypes.CDLL) -> int:
    """What this kernel offers; 0 where there is no landlock."""
    create_version = 1
    return max(0, int(libc.syscall(CREATE, None, ctypes.c_size_t(0), create_version)))


def restrict(libc: ctypes.CDLL, fence: dict[str, list[str]]) -> None:
    """Leave only the paths under `read`, `list` (names in a folder, no contents) and `write`; no TCP, no signals out.

    Missing paths are passed over. Raises `OSError` where the kernel refuses.
    """
    level = abi(libc)
    if level == 0:
        raise OSError("this kernel has no landlock")
    rights = ALL_FILES[min(level, max(ALL_FILES))]
    network = BOTH_TCP if level >= TCP_ABI else 0
    scoped = SIGNALS_AND_ABSTRACT_SOCKETS if level >= SCOPE_ABI else 0
    size = 24 if level >= SCOPE_ABI else 16 if level >= TCP_ABI else 8
    ruleset = _Ruleset(rights, network, scoped)
    handle = _checked(libc.syscall(CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), 0))
    for kind, allowed in (("read", READ), ("list", READ_DIR), ("write", rights)):
        for path in fence[kind]:
            _allow(libc, handle, path, allowed)
    _checked(libc.syscall(RESTRICT, handle, 0))
    os.close(handle)


def _allow(libc: ctypes.CDLL, handle: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib costs milliseconds at start
        rights &= OF_A_FILE
    rule = _PathBeneath(rights, parent)
    _checked(libc.syscall(ADD_RULE, handle, PATH_BENEATH, ctypes.byref(rule), 0))
    os.close(parent)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock refused a rule")
    return result
