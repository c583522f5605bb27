"""A judging of a released kernel, as it is kept: by whom, how, and the whole verdict."""

from pathlib import Path
from typing import Literal

from bench.results.records import read_lines, write_lines
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.settings import Accuracy, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Failed, Passed, Verdict

OURS, THEIRS = "kernelwright", "KernelBench"
RECORDS = Path(__file__).parents[1] / "records" / "others.jsonl.gz"
REASON = 300
"""Characters of a reason that are kept beside the verdict."""


class Row(Record):
    """One judging. `sizes`: whether the problem is the release's own or KernelBench's present one."""

    source: str
    name: str
    digest: str
    """sha256 of the kernel, as 64 hex digits."""
    claimed: float | None
    sizes: Literal["released", "present"] = "released"
    way: Literal["kernelwright", "KernelBench"]
    accuracy: Accuracy | None
    """None for KernelBench's evaluator, which has its own."""
    effort: JudgingEffort | None
    device: str
    outcome: str
    """`passed`, `failed: STAGE`, `not judged`; of the evaluator `passed` or `failed`."""
    why: str = ""
    speedup: float | None = None
    """As that way reports it."""
    seconds: float
    verdict: Verdict | None = None
    """With all raw samples; None where there is none, and in rows of the evaluator."""

    @property
    def key(self) -> tuple[str | None, ...]:
        """Identity of the judging: rows of one key are the same question."""
        return self.source, self.name, self.sizes, self.way, self.accuracy, self.effort

    def meets(self, accuracy: Accuracy) -> bool | None:
        """Return whether this judging shows that the kernel is right at an accuracy; None where it does not show it."""
        if self.verdict is None:
            return self.outcome == "passed" if accuracy == self.accuracy and self.outcome != "not judged" else None
        if isinstance(self.verdict, Failed):
            # Another stage than the comparison fails at every accuracy; a comparison ends at its first error.
            return False if self.verdict.stage != "check" or accuracy == self.accuracy else None
        return True if accuracy == self.accuracy else self.verdict.evidence.meets(accuracy)


def outcome_of(verdict: Verdict) -> tuple[str, str]:
    """The outcome and why, as a row has them."""
    if isinstance(verdict, Passed):
        return "passed", verdict.measurement.comparison
    return f"failed: {verdict.stage}", " ".join(verdict.reason.split())[:REASON]


def read_rows(*paths: Path) -> list[Row]:
    """The rows of files, the last of each key; a file that is not there has none."""
    found: dict[tuple[str | None, ...], Row] = {}
    for path in paths:
        if path.suffix == ".gz":
            found |= {row.key: row for row in read_lines(path, Row.model_validate_json)}
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            found |= {row.key: row for row in map(Row.model_validate_json, lines)}
    return list(found.values())


def add_rows(paths: list[Path], records: Path = RECORDS) -> list[Row]:
    """Add rows of these files to the records; all that are kept then."""
    rows = read_rows(*([records] if records.exists() else []), *paths)
    rows.sort(key=lambda row: tuple(map(str, row.key)))
    if paths:
        write_lines(records, rows)
    return rows
