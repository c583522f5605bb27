"""The kernels that a run kept for the parts of a program: put into a model, or written as a package of their own."""

import json
import keyword
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from torch import nn

from kernelwright.evals.formats.samples import Outcome, best_of, outcomes_of
from kernelwright.problems.problem import ProblemError
from kernelwright.programs import placing
from kernelwright.programs.guarded import NoPlace
from kernelwright.programs.placing import MANIFEST
from kernelwright.programs.record import Part, is_capture, read_capture, read_split
from kernelwright.sandbox.storage import MARK, all_entries, cache_root, write_atomically
from kernelwright.sandbox.verdict.report import report, speedup_words
from kernelwright.sandbox.verdict.verdicts import Passed


class KeptKernel(NamedTuple):
    """The best kernel for a part, and the places of the part."""

    part: Part
    places: tuple[tuple[str, str], ...]
    """Root and module."""
    outcome: Outcome
    verdict: Passed


class KeptKernels(NamedTuple):
    kernels: tuple[KeptKernel, ...]
    left: dict[str, str]
    """By part, why its best is not put into the program."""

    @property
    def reasons(self) -> str:
        return "; ".join(f"{part}: {why}" for part, why in self.left.items())


def kept_kernels(run: Path) -> KeptKernels:
    """Read the kernels of a run over a capture. `ProblemError` where the run is of no capture; `RunLogError`."""
    if not is_capture(run):
        raise ProblemError(
            f"{run} searched for no parts of a program; run `kernelwright run CAPTURE`, and give its folder"
        )
    capture, split = read_capture(run), read_split(run)
    best, kernels, left = best_of(outcomes_of(run)), [], {}
    for chosen in split.chosen:
        part, outcome = capture.part(chosen.part), best.get(chosen.part)
        verdict = outcome.verdict if outcome else None
        if outcome is None or not isinstance(verdict, Passed):
            left[part.id] = "no correct kernel was found"
            continue
        status = verdict.evidence.problem_status
        if status is not None and status.status == "weak":
            left[part.id] = "its problem cannot distinguish a lazy answer from a right one"
        # A saving too small for the judge's clock may still be one: the program is timed as a whole, with and without.
        elif verdict.measurement.comparison not in ("faster", "unconfirmed"):
            left[part.id] = f"the best kernel is not faster beyond doubt: {speedup_words(verdict)}"
        elif part.written and outcome.problem.state != "followed":
            left[part.id] = "it changes buffers, and the kernel was not judged for them"
        else:
            kernels.append(KeptKernel(part, chosen.sites, outcome, verdict))
    return KeptKernels(tuple(kernels), left)


def write_kernels(folder: Path, kernels: Iterable[KeptKernel]) -> None:
    parts = []
    for kernel in kernels:
        place = folder / kernel.part.id
        write_atomically(place / "candidate.py", kernel.outcome.sample.candidate.source)
        write_atomically(place / "reference.py", kernel.outcome.problem.source)
        about = {
            "problem_digest": kernel.outcome.problem.digest,
            "candidate_digest": kernel.outcome.sample.candidate.digest,
            "judged_on": kernel.outcome.device,
            **{key: (kernel.outcome.facts or {}).get(key) for key in ("run", "attempt")},
        }
        write_atomically(place / "verdict.json", json.dumps(report(kernel.verdict) | about, indent=1) + "\n")
        record = kernel.part.model_dump(mode="json", exclude={"sizes": {"__all__": {"sites", "work"}}})
        # A kernel was judged at one size of its problem; at others it need not be right.
        record["sizes"] = [size for size in record["sizes"] if size["name"] == kernel.outcome.problem.size]
        parts.append(record | {"places": [list(one) for one in kernel.places], "dtype": kernel.outcome.problem.dtype})
    write_atomically(folder / MANIFEST, json.dumps({"parts": parts}, indent=1) + "\n")


def apply(model: nn.Module, run: str | Path) -> nn.Module:
    """Put the kernels that a run kept into the model that was captured; the same model, with its names as before.

    A kernel is taken for calls like those that it was judged for; others take the module's own code, and are counted:
    `print(applied(model))`. Kernels run in this process. Raises `NoPlace` where none finds its place, and the errors
    of `kept_kernels`.
    """
    kept = kept_kernels(Path(run))
    if not kept.kernels:
        raise NoPlace(f"{run} kept no kernel for the program: {kept.reasons}")
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


OURS = Path(__file__).parent
CARRIED = ("guarded", "placing", "graphs")
"""Modules of `programs` that need torch alone."""
BUILT = (".so", "built.json", "platform.json")
"""Suffixes of the files of a build that are needed later."""


def write_package(folder: Path, kept: KeptKernels, run: str) -> str:
    """Write a package, build its kernels for this machine and run its tests; the last line of these.

    The package has the folder's name. `ProblemError` where there is nothing to write, or it cannot be built.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ProblemError(f"{name!r} names no package; give a folder of lower-case letters, digits and _")
    if not kept.kernels:
        raise ProblemError(f"{run} kept no kernel for the program: {kept.reasons}")
    inner = folder / name
    if folder.exists() and any(folder.iterdir()) and not (inner / MANIFEST).is_file():
        raise ProblemError(f"{folder} is there and holds no kernels; give a folder that is new, or an earlier package")
    shutil.rmtree(inner, ignore_errors=True)
    write_kernels(inner, kept.kernels)
    for module in CARRIED:
        text = (OURS / f"{module}.py").read_text(encoding="utf-8")
        text = re.sub(r"^from kernelwright\.programs\.", "from .", text, flags=re.MULTILINE)
        (inner / f"{module}.py").write_text(text, encoding="utf-8")
    places = dict.fromkeys(root for kernel in kept.kernels for root, _ in kernel.places)
    words = {
        "NAME": name,
        "TITLE": f"Kernels of {run} for {', '.join(places)}.",
        "ROWS": "\n".join(map(_row, kept.kernels)),
    }
    targets = {"package.py": inner / "__init__.py", "tests.py": inner / "tests.py"}
    targets |= {"README.md": folder / "README.md", "pyproject.toml": folder / "pyproject.toml"}
    for template, to in targets.items():
        text = (OURS / "templates" / f"{template}.txt").read_text(encoding="utf-8")
        to.write_text(re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text), encoding="utf-8")
    return _built(folder, name)


def _built(folder: Path, name: str) -> str:
    """Build and test as its user would: in a process that has the package and not kernelwright."""
    _python(folder, "-c", f"import {name}; {name}.build()")
    for path in sorted((folder / name / "built").rglob("*"), reverse=True):
        if path.is_file() and not path.name.endswith(BUILT):
            path.unlink()
    said = _python(folder, "-m", f"{name}.tests")
    for path in folder.rglob("__pycache__"):
        shutil.rmtree(path)
    return said.strip().splitlines()[-1]


def _python(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise ProblemError(f"the package in {folder} does not work here; it said:\n{done.stderr[-2000:].strip()}")
    return done.stderr


def _row(kernel: KeptKernel) -> str:
    places = ", ".join(f"`{'.'.join(filter(None, place))}`" for place in kernel.places)
    cells = (speedup_words(kernel.verdict), kernel.verdict.measurement.closest.baseline, kernel.outcome.device)
    return f"| `{kernel.part.id}` | {places} | {' | '.join(cells)} |"
