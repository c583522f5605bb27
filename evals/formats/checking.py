"""One line a problem: can it be judged, and does it tell right from lazy? And what all lines come to."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, NamedTuple

from kernelwright.problems import ProblemError
from kernelwright.problems.formats import Entry
from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import Problem
from kernelwright.sandbox.calls.memory_planning import refusal_by_text
from kernelwright.sandbox.machine.identity import device_name
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import Settings

Status = Literal["ok", "weak", "unsupported", "unsupported here", "broken", "failed"]
ORDER: tuple[Status, ...] = ("ok", "weak", "unsupported", "unsupported here", "broken", "failed")
TRIED_AGAIN = frozenset({"unsupported here", "failed"})
"""What another try may change while the problem stays what it is."""


class Examined(NamedTuple):
    """What running a problem told."""

    status: Status
    why: tuple[str, ...] = ()
    """The reasons, or what else is to be said."""
    kinds: tuple[str, ...] = ()
    """In one word each, what makes it weak: `lazy`, `random`."""


Examine = Callable[[Problem, Settings], Examined]
"""Runs a problem in the jail."""


class Checked(Record):
    """The line of one problem."""

    problem: str
    """Its id in its collection, its path or its name."""
    status: Status
    """`unsupported`: sound, but more than the judge can do; `unsupported here`: than it can do on this machine;
    `broken`: not what its format asks for; `failed`: the judge's own fault."""
    why: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The reasons in one word each, where there are such; the first is the one that counts."""
    digest: str = ""
    """Of the problem; empty where nothing could be read of it."""
    device: str = ""
    """The name of the processor or GPU; empty where nothing was run."""
    dtype: str | None = None
    judge_version: Annotated[str, JUDGE_FIELD] = ""
    """Another judge may find something else."""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str | None, str]:
        """Lines with the same key stand for one another."""
        return self.problem, self.digest, self.device, self.dtype, self.judge_version

    @property
    def words(self) -> str:
        return f"{self.problem}: {self.status}{''.join(f'; {reason}' for reason in self.why)}"


def begun(entry: Entry, settings: Settings) -> Checked:
    """The line of an entry before it is examined. It stands where nothing can be read of it."""
    if entry.problem is None:
        status: Status = "broken" if entry.status == "broken" else "unsupported"
        return Checked(problem=entry.id, status=status, why=(entry.why,))
    return Checked(
        problem=entry.id,
        status="ok",
        digest=entry.problem.digest,
        device=device_name(settings.device),
        dtype=entry.problem.dtype,
        judge_version=str(JUDGE_VERSION),
    )


def check_entry(examine: Examine, settings: Settings, entry: Entry) -> Checked:
    """The line of an entry. What can be told from its text is told without running it. Raises `MachineError`."""
    line = begun(entry, settings)
    if entry.problem is None:
        return line
    start = time.monotonic()
    found = _examined(examine, settings, entry.problem)
    why = (*found.why, *entry.notes) if found.status in ("ok", "weak") else found.why
    seconds = round(time.monotonic() - start, 2)
    return line.model_copy(update=found._asdict() | {"why": why, "seconds": seconds})


def _examined(examine: Examine, settings: Settings, problem: Problem) -> Examined:
    if said := refusal_by_text(problem, settings):
        return Examined("unsupported here", (said,), ("memory",))
    try:
        return examine(problem, settings)
    except UnsupportedHere as error:
        return Examined("unsupported here", (str(error),), ("memory",))
    except UnsupportedProblem as error:
        return Examined("unsupported", (str(error),))
    except (BrokenProblem, ProblemError) as error:
        return Examined("broken", (str(error),))
    except MachineError:
        raise
    except Exception as error:  # one problem, whatever it met, must not end the check of hundreds
        said = f"the judge itself failed ({type(error).__name__}: {error}); please report it"
        return Examined("failed", (said,))


def summary(lines: Iterable[Checked]) -> str:
    """`229 ok, 18 weak (9 lazy, 9 random), 3 unsupported here (memory)`: each problem once, by its first reason."""
    by_status: dict[Status, list[Checked]] = {}
    for line in lines:
        by_status.setdefault(line.status, []).append(line)
    return ", ".join(
        f"{len(by_status[status])} {status}{_reasons(by_status[status])}" for status in ORDER if status in by_status
    )


def _reasons(lines: list[Checked]) -> str:
    counts = Counter(line.kinds[0] if line.kinds else "other" for line in lines)
    if set(counts) <= {"other"}:
        return ""
    if len(counts) == 1:
        return f" ({next(iter(counts))})"
    return f" ({', '.join(f'{count} {kind}' for kind, count in counts.most_common())})"
