"""A run's kernels as a package: sources, verdicts, builds and tests, with the guards that put them into a model."""

import keyword
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kernelwright.problems.record.problem import ProblemError
from kernelwright.programs.apply.kept import KeptKernel, KeptKernels, write_kernels
from kernelwright.programs.apply.placing import MANIFEST
from kernelwright.sandbox.verdict.in_words import speedup_words
from kernelwright.sandbox.verdict.verdicts import Passed

OURS = Path(__file__).parents[1]
CARRIED = (
    "apply/call_sizes",
    "apply/guarded",
    "apply/extensions",
    "apply/placing",
    "apply/spliced",
    "capture/graphs",
)
"""Modules of `programs` that need torch alone."""
BUILT = (".so", "built.json", "platform.json")
"""How the files of a build end that are of use later."""


def write_package(folder: Path, kept: KeptKernels, run: str) -> str:
    """Write it, build its kernels for this machine and run its tests; what these said.

    The package has the folder's name. `ProblemError` where there is nothing to write, or it can not be built.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ProblemError(f"{name!r} names no package; give a folder of lower-case letters, digits and _")
    if not kept.kernels:
        told = "; ".join(f"{part}: {why}" for part, why in kept.left.items())
        raise ProblemError(f"{run} kept no kernel for the program: {told}")
    inner = folder / name
    if inner.exists() and not (inner / MANIFEST).is_file():
        raise ProblemError(f"{inner} is there and holds no kernels; give a folder that is new, or an earlier package")
    shutil.rmtree(inner, ignore_errors=True)
    write_kernels(inner, kept.kernels)
    for module in CARRIED:
        text = (OURS / f"{module}.py").read_text(encoding="utf-8")
        text = re.sub(r"^from kernelwright\.programs\.\w+\.", "from .", text, flags=re.MULTILINE)
        (inner / Path(f"{module}.py").name).write_text(text, encoding="utf-8")
    words = {
        "NAME": name,
        "TITLE": f"Kernels of {run} for {_places(kept)}.",
        "ROWS": "\n".join(map(_row, kept.kernels)),
    }
    targets = {"package.py": inner / "__init__.py", "tests.py": inner / "tests.py"}
    targets |= {"README.md": folder / "README.md", "pyproject.toml": folder / "pyproject.toml"}
    for template, to in targets.items():
        text = (OURS / "package" / "templates" / f"{template}.txt").read_text(encoding="utf-8")
        to.write_text(re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text), encoding="utf-8")
    return _built(folder, name)


def _built(folder: Path, name: str) -> str:
    """Build and test as its user would: in a process that has the package and not us."""
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


def _places(kept: KeptKernels) -> str:
    return ", ".join(dict.fromkeys(root for kernel in kept.kernels for root, _ in kernel.places))


def _row(kernel: KeptKernel) -> str:
    verdict = kernel.outcome.verdict
    assert isinstance(verdict, Passed), "only such are kept"
    places = ", ".join(f"`{'.'.join(filter(None, place))}`" for place in kernel.places)
    against = verdict.measurement.closest.baseline
    return f"| `{kernel.part.id}` | {places} | {speedup_words(verdict)} | {against} | {kernel.outcome.device} |"
