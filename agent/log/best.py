"""`best/PROBLEM/` of a run: the kept kernel with its evidence. Derived from the log; may be deleted and made again."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import write_problem
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import DOUBTS, OLDER_CLOCKS, report, timings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed, Verdict

FILES = ("candidate.py", "verdict.json", "README.md")  # the files of the folder, the kernel first
PROBLEM = "problem"
"""The folder within that holds the problem; its reference alone would not be enough to judge the kernel."""
README = """# {title}

The best kernel for problem `{name}` (size `{size}`){made_by}.{note}

Measured on {device}{how}; every timed output was checked:

```
{timings}
```
{doubts}
- `candidate.py`: the kernel, as class `ModelNew`; needs nothing else from here.
- `problem/`: the PyTorch program that it replaces, `reference.py`, and the rules that it was judged by.
- `verdict.json`: the judge's report with every raw sample.
{use}
Judge it again, here or on another machine:

```
{again}
```
"""
USE = """- `use.py`: puts the kernel into a model; run by itself it tries the kernel once:

```
from use import load, replace
replace(my_model, "name.of.the.submodule", load())
```
"""
JUDGE_AGAIN = f"kernelwright judge ./{PROBLEM} candidate.py"  # the command to run in the folder, with `device_option`


def best_folder(log: RunLog, problem_name: str) -> Path:
    return log.folder / "best" / problem_name


def write_best(log: RunLog, problem_name: str) -> Path | None:
    """Write the best kernel of a problem, the problem and the evidence; None where nothing passed.

    Then an earlier one, whose re-evaluation failed, is removed. Raises `RunLogError`.
    """
    folder = best_folder(log, problem_name)
    best = fold(problem_name, log.events(problem_name)).best
    try:
        if best is None:
            clear(folder)
            with suppress(OSError):
                folder.parent.rmdir()
            return None
        assert isinstance(best.ruling, Passed) and best.candidate is not None, "only a candidate that passed is ranked"
        facts = {
            "run": log.header.run_id,
            "attempt": best.number,
            "confirmed": best.confirmed is not None,
            "model": best.reply.model if best.reply else None,
            "device": log.header.device,
        }
        note = best.reply.note if best.reply else ""
        candidate = Candidate(source=log.text(best.candidate.digest), language=best.candidate.language)
        write_kernel(folder, KeptKernel(log.problem(problem_name), candidate, best.ruling, facts, note))
    except OSError as error:
        why = f"cannot write to {folder} ({error.strerror})"
        raise RunLogError(f"{why}; the run itself is safe: make room or check permissions") from error
    return folder


class KeptKernel(NamedTuple):
    problem: Problem
    candidate: Candidate
    verdict: Passed
    facts: Mapping[str, object]
    """The device, and of a run `run`, `attempt`, `model` and `confirmed`."""
    note: str = ""


def write_kernel(folder: Path, kernel: KeptKernel, use: str = "") -> None:
    """Write a kernel, its problem, `verdict.json` and a README; `use` is the text of `use.py`. Raises `OSError`."""
    problem, candidate, verdict, facts, note = kernel
    write_problem(folder / PROBLEM, problem)
    about = {"problem": problem.name, "problem_digest": problem.digest, "candidate_digest": candidate.digest}
    made_by = f"attempt {facts['attempt']} of run `{facts['run']}`, by `{facts['model']}`" if "run" in facts else ""
    readme = README.format(
        title=problem.title,
        name=problem.name,
        size=problem.size,
        made_by=f": {made_by}" if made_by else "",
        note=f"\n\n{note.rstrip('. ')}." if note else "",
        device=facts["device"],
        how=" by a second judge, in new processes and with new seeds" if facts.get("confirmed") else "",
        timings=timings(verdict),
        doubts=_doubts(verdict),
        use=USE if use else "",
        again=JUDGE_AGAIN + device_option(verdict),
    )
    evidence = report(verdict) | about | dict(facts)
    texts = {
        "candidate.py": candidate.source,
        "verdict.json": json.dumps(evidence, indent=2) + "\n",
        "README.md": readme,
    }
    for name, text in (texts | ({"use.py": use} if use else {})).items():
        write_atomically(folder / name, text)


def clear(folder: Path, *more: str) -> None:
    """Remove the files of `write_kernel`, the kernel first; other files in the folder stay."""
    for name in (*FILES, *more):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PROBLEM, ignore_errors=True)
    with suppress(OSError):  # there is none, or it holds files of others
        folder.rmdir()


def device_option(verdict: Verdict | None) -> str:
    """Give the option to judge where that verdict was reached: plain Python would go to the processor."""
    return " --device cuda" if verdict is not None and verdict.evidence.device.startswith("cuda") else ""


NO_GAIN = {
    "slower": "It is slower than PyTorch: keep PyTorch's own code.",
    "same": "It is as fast as PyTorch and no faster.",
}


def _doubts(verdict: Passed) -> str:
    comparison = verdict.measurement.comparison
    doubts = [NO_GAIN[comparison]] if comparison in NO_GAIN else []
    if comparison in DOUBTS:
        why = DOUBTS[comparison]
        doubts.append(f"{why[0].upper()}{why[1:]}. Judge it again before you rely on it.")
    if verdict.measurement.timing_clock in OLDER_CLOCKS:
        doubts.append("An older clock timed it: compare it with no other time before you judge it again.")
    if verdict.evidence.effort != "rank":
        effort = f"It was measured at effort `{verdict.evidence.effort}`, enough to choose"
        doubts.append(f"{effort}: judge it again before you publish it.")
    status = verdict.evidence.problem_status
    if status is not None and status.status == "weak":
        lazy = "The problem cannot tell a lazy answer from a correct one, so it is not ranked"
        doubts.append(f"{lazy}: {status.why[0].rstrip('. ')}.")
    return "".join(f"\n{doubt}\n" for doubt in doubts)
