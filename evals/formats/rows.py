"""One flat row a judged candidate: JSON lines, and a folder that Hugging Face reads as a data set."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.evals.formats.samples import Outcome
from kernelwright.problems.texts.libraries import library
from kernelwright.sandbox.machine.atomic import write_atomically
from kernelwright.sandbox.verdict.report import USUAL, report

CARD = """---
configs:
- config_name: default
  data_files: data/{file}
tags:
- kernels
- code
---

# Judged kernels

{count} candidates for {problems} problems, {passed} of them right, judged by kernelwright on {devices}.

One row a candidate. `source` is the candidate and `reference` the PyTorch program that it replaces, both as they were
judged; `outcome` is `passed` or `failed`, with `stage` and `reason`; `speedup` is against the fastest baseline at
equal accuracy, which `against` names, with the ends of its 95 % interval, and `speedup_any` against the fastest of all.
It counts as at most 1 where `comparison` is `too_noisy` or `unconfirmed`. `timing_clock` says what the times are:
compare none of two clocks. `speedup_eager`, `speedup_shipped` and `speedup_compiled` are
against strict eager, eager under PyTorch's own switches and the fastest torch.compile mode; times are medians in ms;
`report` is the judge's whole report as JSON, with every raw sample. `confirmed` says that a fresh judge gave this
verdict, in the place of an earlier one; `effort` how much the measurement cost: `rank` in full, `search` enough to
choose. What is not known is null. The texts were written by language models; say under
which licence you publish them.
"""
SHORT = (
    "outcome", "stage", "reason", "speedup", "speedup_low", "speedup_high", "speedup_any", "comparison", "timing_clock",
    "candidate_ms", "against", "effort", *USUAL,
)  # fmt: skip

FACTS = (
    "run", "attempt", "confirmed", "role", "parent", "idea", "model",
    "input_tokens", "output_tokens", "cost_usd", "latency_s",
)  # fmt: skip


def row_of(outcome: Outcome) -> dict[str, Any]:
    """The row of an outcome; the keys are the same for all."""
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
    """Write the folder: a card, and the rows in `data`."""
    name = "train.jsonl"
    write_rows(folder / "data" / name, outcomes)
    card = CARD.format(
        file=name,
        count=len(outcomes),
        problems=len({outcome.problem.digest for outcome in outcomes}),
        passed=sum(outcome.passed for outcome in outcomes),
        devices=", ".join(sorted({outcome.device for outcome in outcomes})) or "no device",
    )
    write_atomically(folder / "README.md", card)
