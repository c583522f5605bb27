"""What a child does to itself before it runs anything untrusted. Standard library only.

The order matters: limits and user first, while there are rights; then no new privileges; then landlock and the system
call filter, which both need that. A step that fails ends the child: it never runs with less than was promised.
"""

import ctypes
import os
import resource
from typing import Any

from sandbox.child import landlock, syscalls

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9


def confine(plan: dict[str, Any]) -> None:
    """Carry out a plan of `sandbox.jail`: keys `limits`, `user`, `landlock`, `filter`, each may be None."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, value in (plan["limits"] or {}).items():
        _limit(getattr(resource, name), value)
    if plan["user"] is not None:
        os.setgroups([])
        os.setresgid(plan["user"], plan["user"], plan["user"])
        os.setresuid(plan["user"], plan["user"], plan["user"])
    # After the change of user, which would clear it.
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    if plan["landlock"] is not None:
        landlock.restrict(libc, plan["landlock"]["read"], plan["landlock"]["write"])
    if plan["filter"] is not None:
        syscalls.install(libc, alone=plan["filter"] == "alone")


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))
