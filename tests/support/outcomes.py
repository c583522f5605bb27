"""Outcomes of the hostile and honest candidates, and figures of the stored verdicts, each under a judge version.

`tests/contract/outcomes.json` holds the stage and kinds of reason of each candidate. `make prove` judges all of them:
it adds new candidates, and writes the table again after `JUDGE_VERSION` was raised. An outcome that differs under the
same version fails. `tests/contract/figures.json` holds speedup, interval and comparison of each verdict in `results`;
`python -m tests.support.outcomes` adds new ones, and writes all again under a new version.
"""

import json
import re
import subprocess
import tomllib
import zlib
from functools import cache
from pathlib import Path

from bench.results.records import Searched, read_lines
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.verdicts import Passed, Verdict

ROOT = Path(__file__).parent.parent.parent
OUTCOMES = ROOT / "tests" / "contract" / "outcomes.json"
FIGURES = ROOT / "tests" / "contract" / "figures.json"
REASONS = ROOT / "tests" / "contract" / "reasons.toml"
RECORDS = ROOT / "results" / "records.jsonl.gz"
PASSED = "passed"


@cache
def kinds():
    """The kinds of reason by name, each with what its sentence holds; the first that fits counts."""
    return {name: re.compile(text) for name, text in tomllib.loads(REASONS.read_text())["kinds"].items()}


def outcome_of(verdict: Verdict):
    """Return `passed`, or stage and kind as `check: shape`. Raises `AssertionError` for a reason of no kind."""
    if isinstance(verdict, Passed):
        return PASSED
    for kind, pattern in kinds().items():
        if pattern.search(verdict.reason):
            return f"{verdict.stage}: {kind}"
    raise AssertionError(f"no kind in {REASONS.name} fits the reason {verdict.reason!r} of stage {verdict.stage}")


class Outcomes:
    """The table of outcomes, and what a session finds."""

    def __init__(self, path=OUTCOMES):
        self._path = path
        self.judge_version, self.recorded = read_table(path)
        self.found = {}

    def check(self, name, verdict):
        """Compare a candidate's outcome with the table and note it. Raises `AssertionError` where it changed."""
        outcome = self.found[name] = outcome_of(verdict)
        if self.judge_version == JUDGE_VERSION and name in self.recorded:
            allowed = self.recorded[name]
            assert outcome in allowed, f"{name}: {outcome}, under judge version {JUDGE_VERSION} so far: {allowed}"

    def write(self, names):
        """Write the table where it gained candidates, or, under a new judge version, where all `names` were judged.

        An outcome that varies from run to run gets its further kinds by hand.
        """
        if self.judge_version == JUDGE_VERSION:
            table = self.recorded | {name: [one] for name, one in self.found.items() if name not in self.recorded}
        elif set(names) <= self.found.keys():
            table = {name: [one] for name, one in self.found.items()}
        else:
            return
        if (self.judge_version, self.recorded) != (JUDGE_VERSION, table):
            write_table(self._path, table)


def read_table(path, text=None):
    """The judge version of a table, and its entries."""
    whole = json.loads(path.read_text() if text is None else text)
    return whole["judge_version"], whole["entries"]


def write_table(path, entries):
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
    path.write_text(f'{{"judge_version": {JUDGE_VERSION}, "entries": {{\n{lines}\n}}}}\n')


def earlier_tables(path):
    """Each committed form of a table, oldest last; empty outside of a git checkout."""
    place = path.relative_to(ROOT)
    log = ["git", "log", "--format=%H", "--", str(place)]
    commits = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for commit in commits:
        shown = subprocess.run(
            ["git", "show", f"{commit}:{place}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:
            yield read_table(path, shown.stdout)


def figures():
    """Speedup, interval and comparison of passing verdicts in `results`, by run, problem, attempt, judging, samples."""
    found = {}
    for one in read_lines(RECORDS, Searched.model_validate_json):
        for answered in one.attempts:
            attempt = answered.attempt
            for name, verdict in (("judged", attempt.verdict), ("confirmed", attempt.confirmed)):
                if isinstance(verdict, Passed):
                    measurement = verdict.measurement
                    interval = measurement.interval
                    samples = zlib.crc32(repr(measurement.pairings[0].candidate_ms).encode())
                    found[f"{one.run} {one.problem} {attempt.number} {name} {samples:08x}"] = [
                        measurement.speedup, interval.low, interval.high, measurement.comparison,
                    ]  # fmt: skip
    return found


if __name__ == "__main__":
    version, recorded = read_table(FIGURES)
    kept = recorded if version == JUDGE_VERSION else {}
    write_table(FIGURES, figures() | kept)
