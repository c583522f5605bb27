"""Candidates as files of our own: a folder a problem, one row a candidate, and the best kernels each in a folder.

`write_folder` writes what `kernelwright score` reads, `write_rows` JSON lines and `write_data_set` a folder that
Hugging Face reads as a data set. A folder of `write_best` can be used and checked without the run.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernelwright.agent.log.best import JUDGE_AGAIN, PROBLEM, device_option
from kernelwright.evals.formats import kernelbench
from kernelwright.evals.formats.samples import Outcome, Sample, best_of
from kernelwright.problems.formats.reading import safe_name, write_problem
from kernelwright.problems.problem import library
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import DOUBTS, LAUNCH_BOUND, USUAL, others_of, report, speedup_words
from kernelwright.sandbox.verdict.verdicts import Passed

Places = Mapping[str, Sequence[str]]
"""By target, the names of the problems that its candidates are for."""


def write_folder(folder: Path, samples: Sequence[Sample], places: Places | None = None) -> list[Path]:
    """Write each sample into the folder of its problem, or of each problem that `places` names for its target.

    A sample of KernelBench lies in the folder itself under its usual name, which tells its problem. Returns the files.
    """
    written: list[Path] = []
    for sample in samples:
        for place in [""] if sample.bench_id else (places or {}).get(sample.target, [sample.target]):
            name = f"{safe_name(sample.name)}.py" if sample.name else f"sample_{sample.number}.py"
            name = kernelbench.file_name(sample) if sample.bench_id else name
            path = folder / (safe_name(place.replace("/", "_")) if place else "") / name
            if path in written:
                path = path.with_stem(f"{path.stem}_{sample.number}_{sample.candidate.digest[:8]}")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, sample.candidate.source)
            written.append(path)
    return written


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
    card = CARD.format(
        file=name,
        count=len(outcomes),
        problems=len({outcome.problem.digest for outcome in outcomes}),
        passed=sum(outcome.passed for outcome in outcomes),
        devices=", ".join(sorted({outcome.device for outcome in outcomes})) or "no device",
    )
    write_atomically(folder / "README.md", card)


USE = Path(__file__).parents[1] / "templates" / "use.py.txt"
"""Goes beside a kept kernel as `use.py`."""
README = """# {title}

The best kernel of run `{run}` for `{name}`: attempt {attempt}, by `{model}`.

- {speedup} against the fastest baseline at equal accuracy, {against}{others} ({baselines})
- candidate {candidate_ms:.4g} ms on {device}{how}, by the clock `{clock}`{doubts}
- judged with: {versions}

| file | is |
|---|---|
| `candidate.py` | the kernel, as class `ModelNew`; needs nothing else from here |
| `problem/` | what it replaces and the rules that it was judged by |
| `verdict.json` | the judge's report, with every raw sample |
| `use.py` | puts the kernel into a model; run by itself it tries the kernel once |

Use it in a model:

```
from use import load, replace
replace(my_model, "name.of.the.submodule", load())
```

Verify it, here or on another machine:

```
{judge_again}
```
"""


def write_best(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """A folder for the best kernel of each problem that has one; the folders.

    Where a problem has none and an earlier export left a kernel that is refused now, that one goes away.
    """
    best = best_of(outcomes)
    for outcome in outcomes:
        if outcome.problem.name not in best:
            _remove_stale(folder / safe_name(outcome.problem.name), outcome)
    return [write_kept(folder / safe_name(name), outcome) for name, outcome in best.items()]


def _remove_stale(folder: Path, refused: Outcome) -> None:
    kernel = folder / "candidate.py"
    if not kernel.is_file() or sha256(kernel.read_bytes()).hexdigest() != refused.sample.candidate.digest:
        return
    for name in ("candidate.py", "verdict.json", "use.py", "README.md"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PROBLEM, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def write_kept(folder: Path, outcome: Outcome) -> Path:
    assert isinstance(outcome.verdict, Passed), "only what passed is kept"
    folder.mkdir(parents=True, exist_ok=True)
    write_problem(folder / PROBLEM, outcome.problem)
    facts = outcome.facts or {}
    about = {"problem": outcome.problem.name, "problem_digest": outcome.problem.digest}
    about |= {"candidate_digest": outcome.sample.candidate.digest, "device": outcome.device}
    texts = {
        "candidate.py": outcome.sample.candidate.source,
        "verdict.json": json.dumps(report(outcome.verdict) | about | facts, indent=2) + "\n",
        "use.py": USE.read_text(encoding="utf-8"),
        "README.md": _readme(outcome, outcome.verdict, facts),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return folder


def _readme(outcome: Outcome, verdict: Passed, facts: dict[str, object]) -> str:
    measurement = verdict.measurement
    doubts = DOUBTS.get(measurement.comparison, ""), LAUNCH_BOUND if measurement.is_launch_bound else ""
    return README.format(
        title=outcome.problem.title,
        name=outcome.problem.name,
        run=facts.get("run", "?"),
        attempt=facts.get("attempt", "?"),
        model=facts.get("model", "?"),
        speedup=speedup_words(verdict),
        against=measurement.closest.baseline,
        others=others_of(measurement),
        clock=measurement.timing_clock,
        doubts="".join(f"\n- {line}" for line in doubts if line),
        baselines=", ".join(f"{name} {ms:.4g} ms" for name, ms in measurement.baselines_ms.items()),
        candidate_ms=measurement.candidate_ms,
        device=outcome.device,
        how=", measured by a second judge, in new processes and with new seeds" if facts.get("confirmed") else "",
        judge_again=JUDGE_AGAIN + device_option(verdict),
        versions=", ".join(f"{name} {version}" for name, version in verdict.evidence.versions.items()),
    )
