"""What a run kept for the parts of a program, as a folder that `programs.apply.placing` reads."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.evals.formats.outcomes import run_outcomes
from kernelwright.evals.formats.samples import Outcome, best_of
from kernelwright.problems.record.problem import ProblemError
from kernelwright.programs.apply.placing import MANIFEST
from kernelwright.programs.record.capture_folder import is_capture, read_capture, read_split
from kernelwright.programs.record.parts import Part
from kernelwright.sandbox.machine.atomic import write_atomically
from kernelwright.sandbox.machine.cache import MARK, all_entries, cache_root
from kernelwright.sandbox.verdict.in_words import speedup_words
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Passed

if TYPE_CHECKING:
    from torch import nn

    from kernelwright.programs.apply.placing import Applied


class KeptKernel(NamedTuple):
    """The best kernel for a part, and where the part stands."""

    part: Part
    places: tuple[tuple[str, str], ...]
    """Root and module."""
    outcome: Outcome


class KeptKernels(NamedTuple):
    """All that a run found for a capture."""

    kernels: tuple[KeptKernel, ...]
    left: dict[str, str]
    """By part, why its best is not put into the program."""


def kept_kernels(run: Path) -> KeptKernels:
    """What a run over a capture kept. `ProblemError` where the run is of no capture; `RunLogError`."""
    if not is_capture(run):
        raise ProblemError(
            f"{run} searched for no parts of a program; run `kernelwright run CAPTURE`, and give its folder"
        )
    capture, split = read_capture(run), read_split(run)
    best, kernels, left = best_of(run_outcomes(run)), [], {}
    for chosen in split.chosen:
        part, outcome = capture.part(chosen.part), best.get(chosen.part)
        why = _unfit(part, outcome)
        if why:
            left[part.id] = why
        elif outcome is not None:
            kernels.append(KeptKernel(part, chosen.sites, outcome))
    return KeptKernels(tuple(kernels), left)


def _unfit(part: Part, outcome: Outcome | None) -> str:
    """Why a kernel is not put in; empty where it is."""
    if outcome is None or not isinstance(outcome.verdict, Passed):
        return "no right kernel was found"
    status, measured = outcome.verdict.evidence.problem_status, outcome.verdict.measurement
    if status is not None and status.status == "weak":
        return "its problem can not tell a lazy answer from a right one"
    if measured.comparison != "faster":
        return f"the best kernel is not faster beyond doubt: {speedup_words(outcome.verdict)}"
    if part.written and outcome.problem.state != "followed":
        return "it changes buffers, and the kernel was not judged for them"
    return ""


def write_kernels(folder: Path, kernels: Iterable[KeptKernel]) -> None:
    """Each kernel with the problem and the verdict, and where they belong."""
    parts = []
    for kernel in kernels:
        verdict = kernel.outcome.verdict
        assert isinstance(verdict, Passed), "only such are kept"
        place = folder / kernel.part.id
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / "candidate.py", kernel.outcome.sample.candidate.source)
        write_atomically(place / "reference.py", kernel.outcome.problem.source)
        write_atomically(place / "verdict.json", json.dumps(report(verdict) | _about(kernel.outcome), indent=1) + "\n")
        parts.append(_manifest_of(kernel))
    write_atomically(folder / MANIFEST, json.dumps({"parts": parts}, indent=1) + "\n")


def _about(outcome: Outcome) -> dict[str, Any]:
    found = {"problem_digest": outcome.problem.digest, "candidate_digest": outcome.sample.candidate.digest}
    return found | {"judged_on": outcome.device} | {key: (outcome.facts or {}).get(key) for key in ("run", "attempt")}


def _manifest_of(kernel: KeptKernel) -> dict[str, Any]:
    record = kernel.part.model_dump(mode="json", exclude={"sizes": {"__all__": {"sites", "work"}}})
    # A kernel was judged at one size of its problem; at others it need not be right.
    record["sizes"] = [size for size in record["sizes"] if size["name"] == kernel.outcome.problem.size]
    return record | {"places": [list(place) for place in kernel.places], "dtype": kernel.outcome.problem.dtype}


def apply(model: "nn.Module", run: str | Path) -> "nn.Module":
    """Put the kernels that a run kept into the model that was captured; the same model, with its names as before.

    A kernel stands in for calls like those that it was judged for; others take the module's own code, and are counted:
    `print(applied(model))`. Kernels run in this process. Raises `NoPlace` where none finds its place, and what
    `kept_kernels` raises.
    """
    from kernelwright.programs.apply import placing
    from kernelwright.programs.apply.guarded import NoPlace

    kept = kept_kernels(Path(run))
    if not kept.kernels:
        told = "; ".join(f"{part}: {why}" for part, why in kept.left.items())
        raise NoPlace(f"{run} kept no kernel for the program: {told}")
    facts = "".join(
        one.outcome.sample.candidate.digest + one.outcome.problem.digest + repr(one.places) for one in kept.kernels
    )
    folder = cache_root() / "applied" / sha256(facts.encode()).hexdigest()[:20]
    write_kernels(folder, kept.kernels)
    write_atomically(folder / MARK, "{}")  # an entry of the cache, used just now
    try:
        return placing.apply(model, folder, folder / "built")
    finally:
        all_entries().trim(keep=folder)


def applied(model: "nn.Module") -> "Applied":
    """The kernels that stand in a model, how often each was taken, and why where it was not. As text, a line each."""
    from kernelwright.programs.apply import placing

    return placing.applied(model)
