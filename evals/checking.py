"""`problems check`: can a problem be judged, and does it refuse lazy answers? One line a problem, and their summary."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TextIO

from pydantic import ValidationError

from kernelwright.problems import Problem, ProblemError
from kernelwright.problems.formats import Entry
from kernelwright.problems.formats.reading import json_lines
from kernelwright.problems.problem import Record
from kernelwright.problems.source import lint_source
from kernelwright.sandbox.backends import CpuBackend, backend_of
from kernelwright.sandbox.calls.reference import ReferenceSession, StatusSubject
from kernelwright.sandbox.correctness.compare import PLAIN, mismatch, tolerance_of
from kernelwright.sandbox.correctness.lint import SEED, Finding, TimedResult, examine, status_of
from kernelwright.sandbox.machine import device_name
from kernelwright.sandbox.pool.judges import within_memory
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import Accuracy, JudgeSettings

Status = Literal["ok", "weak", "unsupported", "unsupported here", "broken", "failed"]
ORDER: tuple[Status, ...] = ("ok", "weak", "unsupported", "unsupported here", "broken", "failed")
TRIED_AGAIN = frozenset({"unsupported here", "failed"})
"""Outcomes that another try may change although the problem is the same."""


class Examined(NamedTuple):
    status: Status
    why: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """In one word each, the reasons for `weak`: `lazy`, `random`."""


Examine = Callable[[Problem, JudgeSettings], Examined]
"""Runs a problem in the jail."""


class Checked(Record):
    problem: str
    """Its id in its collection, its path or its name."""
    status: Status
    """`weak`: degenerate; `unsupported`: sound, but beyond the judge; `unsupported here`: beyond it on this machine;
    `broken`: against its format; `failed`: the judge's own fault."""
    why: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The reasons in one word each, where there are any; the first one counts."""
    digest: str = ""
    """Of the problem; empty where nothing could be read of it."""
    device: str = ""
    """The name of the processor or GPU; empty where nothing was run."""
    dtype: str | None = None
    accuracy: Accuracy = "ieee"
    judge_version: Annotated[str, JUDGE_FIELD] = ""
    """Another judge version may find something else."""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str | None, str, str]:
        return self.problem, self.digest, self.device, self.dtype, self.accuracy, self.judge_version

    @property
    def words(self) -> str:
        return f"{self.problem}: {self.status}{''.join(f'; {reason}' for reason in self.why)}"


def begun(entry: Entry, settings: JudgeSettings) -> Checked:
    if entry.problem is None:
        status: Status = "broken" if entry.status == "broken" else "unsupported"
        return Checked(problem=entry.id, status=status, why=(entry.why,))
    return Checked(
        problem=entry.id,
        status="ok",
        digest=entry.problem.digest,
        device=device_name(settings.device),
        dtype=entry.problem.dtype,
        accuracy=settings.accuracy,
        judge_version=str(JUDGE_VERSION),
    )


def check_entry(examine: Examine, settings: JudgeSettings, entry: Entry) -> Checked:
    """Return the line of an entry; it is run only where its text alone does not decide. Raises `MachineError`."""
    line = begun(entry, settings)
    if entry.problem is None:
        return line
    start = time.monotonic()
    found = _examined(examine, settings, entry.problem)
    why = (*found.why, *entry.notes) if found.status in ("ok", "weak") else found.why
    seconds = round(time.monotonic() - start, 2)
    return line.model_copy(update=found._asdict() | {"why": why, "seconds": seconds})


def _examined(examine: Examine, settings: JudgeSettings, problem: Problem) -> Examined:
    if said := backend_of(settings).refusal_by_text(problem):
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
    except Exception as error:  # no fault in one problem may end the check of hundreds
        said = f"the judge itself failed ({type(error).__name__}: {error}); please report it"
        return Examined("failed", (said,))


def summary(lines: Iterable[Checked]) -> str:
    """Sum up by first reasons: `229 ok, 18 weak (9 lazy, 9 random), 3 unsupported here (memory)`."""
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


class CheckedFile:
    """A file to which each line is appended at once. Use it as a context; without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._known: dict[tuple[str | None, ...], Checked] = {}

    def __enter__(self) -> Self:
        """Raises `ProblemError` for a file with other content, and where it cannot be written."""
        if self._path is None:
            return self
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
            lines = list(_parsed(json_lines(text)))
            if text.strip() and not lines:
                raise ProblemError(f"{self._path} holds no lines of `problems check`; choose another --out")
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ProblemError(f"cannot write {self._path} ({error.strerror}); choose another --out") from error
        if text and not text.endswith("\n"):  # a killed process left part of a line
            self._file.write("\n")
        self._known = {line.key: line for line in lines}
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def known(self, begun: Checked) -> Checked | None:
        """Return the known line for this one; None where it has to be checked, perhaps again."""
        found = self._known.get(begun.key)
        return None if found is None or found.status in TRIED_AGAIN else found

    def add(self, line: Checked) -> None:
        if self._file is None or self._known.get(line.key) == line:
            return
        self._known[line.key] = line
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()


def _parsed(lines: Iterable[str]) -> Iterable[Checked]:
    for line in lines:
        try:
            yield Checked.model_validate_json(line)
        except ValidationError:
            continue


NOT_HANDED_OVER = (
    "{name} cannot be judged: a second model of its class with the same weights and buffers answers otherwise, so no "
    "candidate could be right; register what the constructor draws as a parameter or a buffer that is part of the state"
)


DRAWING = {"random", "dropout"}
"""Kinds of findings on a reference that draws in a call."""


class _Reweighted:
    def __init__(self, subject: StatusSubject) -> None:
        self._subject = subject

    def call(self, values: Values) -> TimedResult:
        with self._subject.reweighted():
            return self._subject.call(values)


def examine_problem(problem: Problem, settings: JudgeSettings) -> Examined:
    """Examine a problem in the jail. Raises the reason why its reference is refused, and `MachineError`."""
    backend = backend_of(settings)
    backend.certain_bytes = 0
    try:
        with backend.device_lock():
            findings = within_memory(problem, lambda: _findings(problem, backend))
    finally:
        backend.release_memory()  # none of this problem is to count for the next one
    status = status_of(findings)
    kinds = dict.fromkeys(finding.kind for finding in findings if finding.weak)
    warnings = lint_source(problem.source, draws=bool(kinds.keys() & DRAWING))
    return Examined(status.status, (*status.why, *warnings), tuple(kinds))


def _findings(problem: Problem, backend: CpuBackend) -> list[Finding]:
    with closing(backend.reference(problem)) as reference:
        reference.sample = None  # there is no candidate to be prepared like it
        with reference.subject() as subject:
            reweighted = _Reweighted(subject) if reference.changing else None
            findings = examine(subject, tolerance_of(problem, backend.settings.accuracy), reweighted)
        if DRAWING & {finding.kind for finding in findings}:
            _ = reference.is_random  # raises where no seed makes it draw the same
        return findings + _handed_over(reference, problem)


def _handed_over(reference: ReferenceSession, problem: Problem) -> list[Finding]:
    """Raise `UnsupportedProblem` where a model of the same class with the same weights answers otherwise.

    No candidate could do better. Without memory for a second model there is a finding instead.
    """
    try:
        values = reference.draw()._replace(seed=SEED)
        first = reference.keep(reference.call(values).output)
        reference.construct_again()
        again = reference.call(values).output
        wrong = mismatch(again, first, first, tolerance_of(problem), PLAIN)
    except UnsupportedHere as error:
        return [Finding("untried", f"whether a second model answers alike was not tried: {error}", weak=False)]
    if wrong is not None:
        raise UnsupportedProblem(NOT_HANDED_OVER.format(name=problem.name))
    return []
