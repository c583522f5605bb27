"""What a child does to itself before it runs anything untrusted. Standard library only.

The order matters: limits and user first, while there are rights; then no new privileges; then landlock and the system
call filter, which both need that. A step that fails ends the child: it never runs with less than was promised.
"""

from __future__ import annotations

import ctypes
import os
import resource

from kernelwright_child.jail import landlock, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = (
    1,
    4,
    8,
    24,
    38,
    47,
)
SIGKILL, AMBIENT_RAISE, CAPABILITIES, CAPABILITY_VERSION = 9, 2, 64, 0x20080522
READ_SEARCH = 2
"""CAP_DAC_READ_SEARCH: to read what permissions would not allow."""


def confine(libc: ctypes.CDLL, plan: dict[str, Any]) -> None:
    """Carry out a plan of `sandbox.jail.layers`: keys `limits`, `user`, `landlock` and `filter`, each may be None.

    `drop` gives up all capabilities; `reads_all` leaves a changed user the one to read where permissions forbid it,
    which landlock bounds.
    """
    _offer_to_the_oom_killer()
    for name, value in (plan["limits"] or {}).items():
        _limit(getattr(resource, name), value)
    if plan["drop"]:
        _drop_privileges(libc, plan["user"], 1 << READ_SEARCH if plan["reads_all"] else 0)
    # After the change of user, which would clear both. The judge reads results from the child's memory.
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    if plan["landlock"] is not None:
        landlock.restrict(libc, plan["landlock"])
    if plan["filter"] is not None:
        syscalls.install(libc, plan["filter"])


def _offer_to_the_oom_killer() -> None:
    """Where memory runs out, a candidate goes first. A courtesy, not a layer: a child can take it back."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _drop_privileges(libc: ctypes.CDLL, user: int | None, kept: int) -> None:
    """Become `user`, with the capabilities in `kept` (a mask of the first 32) and no others, for good."""
    for capability in range(CAPABILITIES):
        if not kept >> capability & 1:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused above the last one that the kernel knows
    if user is not None:
        libc.prctl(PR_SET_KEEPCAPS, 1 if kept else 0, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    wanted = (_Set * 2)(_Set(kept, kept, kept), _Set(0, 0, 0))
    if libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION, 0)), wanted) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")
    if kept and libc.prctl(PR_CAP_AMBIENT, AMBIENT_RAISE, READ_SEARCH, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the right to read could not be kept")
