"""The programs that prompts take their instructions from, built by nvcc for the one architecture that has all."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from kernelwright.prompts.ideas import SNIPPETS

PROGRAMS = sorted(path.stem for path in SNIPPETS.glob("*.cu"))
FLAGS = ("-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Werror", "all-warnings", "-Xptxas", "-v")
NO_COMPILER = None if shutil.which("nvcc") else "needs nvcc, the compiler of the CUDA toolkit, on PATH"


class Built(NamedTuple):
    """A program, and what ptxas said of its kernels."""

    path: Path
    said: str


def build(name: str, folder: Path, sources: Path = SNIPPETS) -> Built:
    """Raises `AssertionError` with the compiler's words where it does not build."""
    path = folder / name
    done = subprocess.run(
        ["nvcc", *FLAGS, str(sources / f"{name}.cu"), "-o", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Built(path, done.stderr)


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With any argument it checks only what needs no device."""
    return subprocess.run([str(path), *arguments], capture_output=True, text=True, check=False, timeout=120)
