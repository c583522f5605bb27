"""`best/PROBLEM/` of a run: the kept kernel with its evidence. Derived from the log; may be deleted and made again."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import write_problem
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import DOUBTS, OLDER_CLOCKS, report, timings
from kernelwright.sandbox.verdict.verdicts import Passed, Verdict

FILES = ("candidate.py", "verdict.json", "README.md")  # the files of the folder, the kernel first
PROBLEM = "problem"
"""The folder within that holds the problem; its reference alone would not be enough to judge the kernel."""
JUDGE_AGAIN = f"kernelwright judge ./{PROBLEM} candidate.py"  # the command to run in the folder, with `device_option`


def best_folder(log: RunLog, problem_name: str) -> Path:
    return log.folder / "best" / problem_name


def write_best(log: RunLog, problem_name: str) -> Path | None:
    """Write the best kernel of a problem, the problem and the evidence; None where nothing passed.

    Then an earlier one, whose re-evaluation failed, is removed. Raises `RunLogError`.
    """
    folder = best_folder(log, problem_name)
    texts = _texts(log, problem_name)
    try:
        if texts is None:
            for name in FILES:  # the kernel first; other files in the folder stay
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / PROBLEM, ignore_errors=True)
            with suppress(OSError):  # there is none, or other files are in it
                folder.rmdir()
                folder.parent.rmdir()
            return None
        write_problem(folder / PROBLEM, log.problem(problem_name))
        for name, text in texts.items():
            write_atomically(folder / name, text)
    except OSError as error:
        why = f"cannot write to {folder} ({error.strerror})"
        raise RunLogError(f"{why}; the run itself is safe: make room or check permissions") from error
    return folder


def _texts(log: RunLog, problem_name: str) -> dict[str, str] | None:
    problem = log.problem(problem_name)
    best = fold(problem_name, log.events(problem_name)).best
    if best is None:
        return None
    verdict, found = best.ruling, best.candidate
    assert isinstance(verdict, Passed) and found is not None, "only a candidate that passed is ranked"
    evidence = report(verdict) | {
        "problem": problem.name,
        "problem_digest": problem.digest,
        "candidate_digest": found.digest,
        "run": log.header.run_id,
        "attempt": best.number,
        "confirmed": best.confirmed is not None,
        "model": best.reply.model if best.reply else None,
        "device": log.header.device,
    }
    texts = log.text(found.digest), json.dumps(evidence, indent=2) + "\n", _readme(log, problem, best, verdict)
    return dict(zip(FILES, texts, strict=True))


def _readme(log: RunLog, problem: Problem, best: Attempt, verdict: Passed) -> str:
    model = best.reply.model if best.reply else best.ask.model
    note = f"\n\n{best.reply.note.rstrip('. ')}." if best.reply and best.reply.note else ""
    how = " by a second judge, in new processes and with new seeds" if best.confirmed else ""
    return f"""# {problem.title}

The best kernel that run `{log.header.run_id}` found for problem `{problem.name}` (size `{problem.size}`): attempt
{best.number}, by `{model}`.{note}

Measured on {log.header.device}{how}; every timed output was checked:

```
{timings(verdict)}
```
{_doubts(verdict)}
- `candidate.py`: the kernel, as class `ModelNew`; needs nothing else from here.
- `problem/`: the PyTorch program that it replaces, `reference.py`, and the rules that it was judged by.
- `verdict.json`: the judge's report with every raw sample.

Judge it again, here or on another machine:

```
{JUDGE_AGAIN}{device_option(verdict)}
```
"""


def device_option(verdict: Verdict | None) -> str:
    """Give the option to judge where that verdict was reached: plain Python would go to the processor."""
    return " --device cuda" if verdict is not None and verdict.evidence.device.startswith("cuda") else ""


def _doubts(verdict: Passed) -> str:
    doubts = []
    if verdict.measurement.comparison in DOUBTS:
        why = DOUBTS[verdict.measurement.comparison]
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
