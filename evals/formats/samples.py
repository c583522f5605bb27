"""Candidates with their addresses and outcomes, from the record of a run or a batch; and as files of our own.

`write_folder` writes what `kernelwright score` reads, `write_rows` JSON lines and `write_data_set` a folder that
Hugging Face reads as a data set. A folder of `write_best` can be used and checked without the run.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AwareDatetime

from kernelwright.agent.log.best import FILES, KeptKernel, clear, write_kernel
from kernelwright.agent.log.records import Attempt, ranked, standing_of
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.verdict_store import devices_of, is_score, log_of, source_digest
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import safe_name
from kernelwright.problems.problem import Record, library
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import USUAL, report
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

TEMPLATES, USE = Path(__file__).parents[1] / "templates", "use.py.txt"
BENCH_ID = re.compile(r"level(\d+)/(\d+)")
SAMPLE_NUMBER = re.compile(r"sample_(\d+)(?=[_.][^/]*$)")


class Sample(Record):
    target: str
    """The problem as its benchmark names it: `level1/3`, a definition; else the problem's name."""
    number: int = 0
    candidate: Candidate
    name: str = ""
    author: str = ""

    @property
    def bench_id(self) -> tuple[int, int] | None:
        match = BENCH_ID.fullmatch(self.target)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def bench_file(self) -> str:
        """The name that KernelBench gives to its file."""
        assert self.bench_id is not None, "only samples of KernelBench have one"
        level, number = self.bench_id
        return f"level_{level}_problem_{number}_sample_{self.number}_kernel.py"


class Samples(Record):
    format: str
    samples: tuple[Sample, ...]
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    """Fields and files that are not known, or known and not used."""


class Outcome(NamedTuple):
    sample: Sample
    verdict: Verdict
    problem: Problem
    device: str
    time: AwareDatetime | None = None
    facts: dict[str, object] | None = None
    """Of a run: model, role, tokens, cost."""

    @property
    def passed(self) -> bool:
        return isinstance(self.verdict, Passed)

    @property
    def standing(self) -> float | None:
        return standing_of(self.verdict)


def best_of(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Return the best outcome of each problem where one passed; for a run, that of its best attempt."""
    by_problem: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_problem.setdefault(outcome.problem.name, []).append(outcome)
    best_first = {name: ranked(found, lambda outcome: outcome.standing) for name, found in by_problem.items()}
    return {name: found[0] for name, found in best_first.items() if found}


def sample_of(target: str, source: str, number: int = 0, name: str = "", author: str = "") -> Sample:
    return Sample(target=target, number=number, candidate=candidate_of(source), name=name, author=author)


def target_of(problem: Problem, path: str = "") -> str:
    """Return the address of a problem's candidates: level and number, definition, else the problem's name.

    `path`: its name in a score, which shows level and number of a file that does not state them.
    """
    if problem.origin is None:
        level, _, stem = path.rpartition("/")
        address = f"{level.rpartition('/')[2].replace('_', '')}/{stem.partition('_')[0]}"
        return address if BENCH_ID.fullmatch(address) else problem.name
    if problem.origin.format in ("flashinfer", "sol-execbench"):
        return problem.origin.title
    return problem.origin.id


def outcomes_of(folder: Path, texts: Mapping[str, str] | None = None) -> list[Outcome]:
    """Read every attempt of a run or a score that has a verdict, each with the one that counts.

    They come in the order of problems and attempts. `texts`: further sources and problems of a score, as in `log_of`.
    Raises `RunLogError`.
    """
    outcomes, scored = [], is_score(folder)
    for device in devices_of(folder):
        with log_of(folder, device, texts) as log:
            judged = [event for event in log.events() if event.kind in ("judged", "confirmed")]
            times = {(event.problem, event.attempt): event.time for event in judged}
            for name in log.header.problems:
                problem = log.problem(name)
                for attempt in fold(name, log.events(name)).attempts:
                    if attempt.candidate is None or attempt.ruling is None:
                        continue
                    candidate = Candidate(
                        source=log.text(attempt.candidate.digest), language=attempt.candidate.language
                    )
                    # KernelBench counts samples from 0, and names files by them.
                    named = SAMPLE_NUMBER.search(attempt.ask.idea) if scored else None
                    number = int(named[1]) if named else 0 if scored else attempt.number - 1
                    sample = Sample(target=target_of(problem, name), number=number, candidate=candidate)
                    time = times.get((name, attempt.number), log.header.started)
                    facts = None if scored else _facts(log, attempt)
                    outcomes.append(Outcome(sample, attempt.ruling, problem, log.header.device, time, facts))
    return _renumbered(outcomes)


def _facts(log: RunLog, attempt: Attempt) -> dict[str, object]:
    reply = attempt.reply
    usage = reply.usage if reply else None
    return {
        "run": log.header.run_id,
        "attempt": attempt.number,
        "confirmed": attempt.confirmed is not None,
        "role": attempt.ask.role,
        "parent": attempt.ask.parent,
        "idea": attempt.ask.idea,
        "model": reply.model if reply else attempt.ask.model,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": usage.cost_usd if usage else None,
        "latency_s": reply.latency_s if reply else None,
    }


def _renumbered(outcomes: list[Outcome]) -> list[Outcome]:
    """Give samples of one problem different numbers."""
    taken: set[tuple[str, str, int]] = set()
    found = []
    for outcome in outcomes:
        sample = outcome.sample
        number = sample.number
        while (outcome.problem.name, sample.target, number) in taken:
            number += 1
        taken.add((outcome.problem.name, sample.target, number))
        found.append(outcome._replace(sample=sample.model_copy(update={"number": number})))
    return found


Places = Mapping[str, Sequence[str]]
"""By target, the names of the problems that its candidates are for."""


def write_folder(folder: Path, samples: Sequence[Sample], places: Places | None = None) -> list[Path]:
    """Write each sample into the folder of its problem, or of each problem that `places` names for its target.

    A sample of KernelBench is in the folder itself under its usual name, which names its problem. Returns the files.
    """
    written: list[Path] = []
    for sample in samples:
        for place in [""] if sample.bench_id else (places or {}).get(sample.target, [sample.target]):
            name = f"{safe_name(sample.name)}.py" if sample.name else f"sample_{sample.number}.py"
            name = sample.bench_file if sample.bench_id else name
            path = folder / (safe_name(place.replace("/", "_")) if place else "") / name
            if path in written:
                path = path.with_stem(f"{path.stem}_{sample.number}_{sample.candidate.digest[:8]}")
            write_atomically(path, sample.candidate.source)
            written.append(path)
    return written


SHORT = (
    "outcome", "stage", "reason", "speedup", "speedup_low", "speedup_high", "speedup_any", "comparison", "timing_clock",
    "candidate_ms", "against", "effort", *USUAL,
)  # fmt: skip

FACTS = (
    "run", "attempt", "confirmed", "role", "parent", "idea", "model",
    "input_tokens", "output_tokens", "cost_usd", "latency_s",
)  # fmt: skip


def row_of(outcome: Outcome) -> dict[str, Any]:
    found = report(outcome.verdict)
    origin = outcome.problem.origin
    return {
        "problem": outcome.problem.name,
        "problem_digest": outcome.problem.digest,
        "format": origin.format if origin else None,
        "target": outcome.sample.target,
        "sample": outcome.sample.number,
        "candidate_digest": outcome.sample.candidate.digest,
        "language": outcome.sample.candidate.language,
        "device": outcome.device,
        "time": outcome.time.isoformat() if outcome.time else None,
        **{key: found[key] for key in SHORT},
        **(dict.fromkeys(FACTS) | (outcome.facts or {})),
        "source": outcome.sample.candidate.source,
        "reference": outcome.problem.source,
        "report": json.dumps(found),
    }


def write_rows(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write JSON lines, or parquet where the path ends so. Raises `LibraryMissing`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row_of(outcome) for outcome in outcomes]
    if path.suffix == ".parquet":
        arrow, parquet = library("pyarrow", f"writing {path}"), library("pyarrow.parquet", f"writing {path}")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_data_set(folder: Path, outcomes: Sequence[Outcome]) -> None:
    name = "train.jsonl"
    write_rows(folder / "data" / name, outcomes)
    card = (
        (TEMPLATES / "card.md")
        .read_text(encoding="utf-8")
        .format(
            file=name,
            count=len(outcomes),
            problems=len({outcome.problem.digest for outcome in outcomes}),
            passed=sum(outcome.passed for outcome in outcomes),
            devices=", ".join(sorted({outcome.device for outcome in outcomes})) or "no device",
        )
    )
    write_atomically(folder / "README.md", card)


def write_best(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write a folder for the best kernel of each problem that has one; return the folders.

    Where a problem has none, a kernel of an earlier export that is refused now is removed.
    """
    best = best_of(outcomes)
    for outcome in outcomes:
        if outcome.problem.name not in best:
            stale = folder / safe_name(outcome.problem.name)
            with suppress(OSError):
                if source_digest((stale / FILES[0]).read_text("utf-8")) == outcome.sample.candidate.digest:
                    clear(stale, "use.py")
    return [write_kept(folder / safe_name(name), outcome) for name, outcome in best.items()]


def write_kept(folder: Path, outcome: Outcome) -> Path:
    assert isinstance(outcome.verdict, Passed), "only what passed is kept"
    facts = {"device": outcome.device} | (outcome.facts or {})
    use = (TEMPLATES / USE).read_text(encoding="utf-8")
    write_kernel(folder, KeptKernel(outcome.problem, outcome.sample.candidate, outcome.verdict, facts), use)
    return folder
