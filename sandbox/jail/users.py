"""Which user a child becomes where this process is root: one of its own, so that two candidates have nothing in common.

With one user for all, a candidate could signal the reference's process, and a fork bomb would use up the number of
processes that its neighbours are allowed.
"""

import os
import pwd
import secrets
from pathlib import Path

NOBODY = 65534
RANGES = (range(1_900_000_000, 2_000_000_000), range(50_000, 60_000))
"""Numbers that no convention gives to anybody: the first for a whole machine, the second for a container."""
TRIES = 8


def unused_user() -> int | None:
    """A number that belongs to no account, or `NOBODY`; None where this process can not become another user at all."""
    if os.geteuid() != 0:
        return None
    for numbers in RANGES:
        for _ in range(TRIES):
            number = numbers[secrets.randbelow(len(numbers))]
            if _is_mapped(number) and not _has_account(number):
                return number
    return NOBODY if _is_mapped(NOBODY) else None


def _is_mapped(number: int) -> bool:
    """Whether this user namespace knows the number, both as user and as group."""
    return all(_holds(Path(f"/proc/self/{kind}_map").read_text(), number) for kind in ("uid", "gid"))


def _holds(table: str, number: int) -> bool:
    lines = [[int(word) for word in line.split()] for line in table.splitlines()]
    return any(start <= number < start + count for start, _, count in lines)


def _has_account(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True


def pending_signals() -> int:
    """Signals that wait, and timers, of this process's user now, as the kernel counts them against a limit."""
    return int(Path("/proc/self/status").read_text().partition("SigQ:")[2].split("/", 1)[0] or 0)
