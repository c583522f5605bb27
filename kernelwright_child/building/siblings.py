"""Ends the other compilations of a build once one has failed: ninja would wait for them. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal

ROUNDS = 3
"""A compiler may start another one while it is looked for."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    Table = dict[int, tuple[str, int, str]]
    """Name, parent and start of every process that lives."""


def end_siblings() -> None:
    """Kill what else the ninja above this process is running; nothing where there is none above.

    SIGKILL, since ninja takes a job that ends by another signal for the user's wish to interrupt the whole. Of two that
    fail at once, one alone does so: else both could end without a word.
    """
    table = _processes()
    line = [os.getpid()]
    while line[-1] in table and not table[line[-1]][0].startswith("ninja"):
        line.append(table[line[-1]][1])
    ninja = line.pop()
    if ninja not in table or not _is_first(f"{ninja}-{table[ninja][2]}"):
        return
    for _ in range(ROUNDS):
        found = _others(table, ninja, line)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        table = _processes()


def _is_first(build: str) -> bool:
    try:
        os.close(os.open(f".failed-{build}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _others(table: Table, ninja: int, line: list[int]) -> list[int]:
    """All processes below ninja but those on the line to this one, and what is below those."""
    found = [ninja]
    for above in found:
        found += [pid for pid, (_, parent, _) in table.items() if parent == above and pid not in line]
    return found[1:]


def _processes() -> Table:
    table: Table = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        try:
            with open(f"/proc/{int(entry)}/stat", "rb") as file:
                front, _, rest = file.read().rpartition(b")")
            fields = rest.decode().split()
            if fields[0] != "Z":
                name = front.partition(b"(")[2].decode(errors="replace")
                table[int(entry)] = (name, int(fields[1]), fields[19])
        except (OSError, ValueError, IndexError):
            continue
    return table
