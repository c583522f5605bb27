"""Candidates and results as other benchmarks keep them, in and out. Texts and records only; nothing is run.

A reader gives `Samples`, with the reason for each that cannot be used. A writer takes `Outcome`s and returns those that
do not fit the format.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kernelwright.evals.formats import flashinfer, kernelbench
from kernelwright.evals.formats.samples import Samples
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.flashinfer import Definition, definition_files, read_definition
from kernelwright.problems.source import read_json, read_text

CandidateFormat = Literal["kernelbench", "leaderboard", "flashinfer"]


def candidate_format(path: Path) -> CandidateFormat | None:
    if path.is_file() and path.suffix == ".json":
        found = read_json(read_text(path), str(path))
        keys = found.keys() if isinstance(found, dict) else ()
        if "kernels" in keys:
            return "leaderboard"
        return "flashinfer" if {"sources", "spec"} <= set(keys) else None
    if not path.is_dir():
        return None
    if kernelbench.run_files(path):
        return "kernelbench"
    return "flashinfer" if flashinfer.solution_files(path) else None


def read_candidates(path: Path, definitions: Mapping[str, Definition]) -> Samples:
    """Read the candidates. `ProblemError` where there are none; solutions that fill outputs need `definitions`."""
    match candidate_format(path):
        case "leaderboard":
            return kernelbench.read_samples(path)
        case "kernelbench":
            return kernelbench.read_run(path)
        case "flashinfer":
            return flashinfer.read_samples(path, definitions)
    raise ProblemError(
        f"{path} holds no candidates that are known; give a run folder or submission of KernelBench, or solutions"
    )


def definitions_under(path: Path) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    for file in definition_files(path):
        try:
            definition = read_definition(file)
        except ProblemError:
            continue
        found[definition.name] = definition
    return found
