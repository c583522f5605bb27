"""The forms in which verdicts are stored, for `judge --recheck`: each as reports of `judge --json` by name."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.agent.log.view import fold
from kernelwright.evals.verdict_store import DATABASE, is_score, log_of, rows_of, run_summary
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import VERDICT, Verdict
from kernelwright.terminal import UserMistake, read_text

FORMS = "use a file of `judge --json`, RUN:PROBLEM/3, the --out of a score, or such records as .jsonl or .jsonl.gz"
SHORT = {"low": "speedup_low", "high": "speedup_high", "counted": "against"}


class Stored(NamedTuple):
    names: Sequence[str]
    """Its name first; each of them may follow a colon on the command line."""
    said: dict[str, Any]
    """The derived numbers that are stored with the verdict; a complete report without a verdict."""
    verdict: Verdict | None = None

    @property
    def report(self) -> dict[str, Any]:
        if self.verdict is None:
            return self.said
        found, raw = report(self.verdict), ("outcome", "samples", "measurement")
        said = {SHORT.get(name, name): value for name, value in self.said.items() if value is not None}
        return found | said | {key: found[key] for key in raw}


def stored_records(text: str) -> list[Stored]:
    """Return the records of a file, a run or a score, or those whose name follows a colon. `UserMistake` for none."""
    place, colon, name = text.rpartition(":")
    if not colon or Path(text).exists() or not Path(place).exists():
        place, name = text, ""
    try:
        found = list(_of_folder(Path(place)) if Path(place).is_dir() else _of_file(place))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zlib.error) as error:
        raise UserMistake(f"the record {place} is no JSON with a verdict ({type(error).__name__}); {FORMS}") from None
    chosen = [one for one in found if not name or name in one.names]
    if not chosen:
        there = ", ".join(one.names[0] for one in found[:3]) + (", ..." if len(found) > 3 else "")
        raise UserMistake(f"{place} holds no record {name or 'at all'}; there are: {there or 'none'}")
    return chosen


def _of_file(path: str) -> Iterator[Stored]:
    is_packed = path.endswith(".gz") and Path(path).is_file()
    text = gzip.decompress(Path(path).read_bytes()).decode() if is_packed else read_text(path, "record")
    for number, line in enumerate(text.strip().split("\n") if path.endswith((".jsonl", ".gz")) else [text], 1):
        yield from _of_object(json.loads(line), str(number))


def _of_object(value: dict[str, Any], line: str) -> Iterator[Stored]:
    """Return the object itself as a report, its `verdict`, or the verdicts of a published problem's attempts."""
    problem, verdict = str(value.get("problem", "record")), value.get("verdict")
    if "attempts" not in value:
        name = "/".join([problem, *(str(value[key]) for key in ("attempt", "candidate") if key in value)])
        names = (f"{line}:{name}", name, line, problem)
        yield Stored(names, {}, VERDICT.validate_python(verdict)) if verdict else Stored(names, value)
    best = value.get("facts", {}).get("best") or {"attempt": None}
    for attempt in (one["attempt"] for one in value.get("attempts", ())):
        number, verdict = str(attempt["ask"]["attempt"]), attempt["confirmed"] or attempt["verdict"]
        if verdict is not None:
            ids = (f"{line}:{problem}/{number}", f"{problem}/{number}", line, problem, str(value["address"]))
            yield Stored(ids, best["measured"] if best["attempt"] == number else {}, VERDICT.validate_python(verdict))


def _of_folder(folder: Path) -> Iterator[Stored]:
    """Return the verdicts that count of all attempts of a run or a score, with the numbers stored with them."""
    reports: dict[str, str] = dict(rows_of(folder / DATABASE, "key, report")) if is_score(folder) else {}
    best = {} if is_score(folder) else {one.problem: one.best for one in run_summary(folder).problems if one.best}
    with log_of(folder) as log:
        for problem in log.header.problems:
            for attempt in fold(problem, log.events(problem)).attempts:
                key = attempt.reply.provider_request_id if attempt.reply else None
                said = json.loads(reports.get(key or "", "{}"))
                if problem in best and best[problem].attempt == str(attempt.number):
                    said = best[problem].measured.model_dump(mode="json")
                if attempt.ruling is not None:
                    yield Stored((f"{problem}/{attempt.number}", problem, attempt.ask.idea), said, attempt.ruling)
