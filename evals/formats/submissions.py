"""KernelBench-Leaderboard: one JSON file with the kernels of a submission."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.agent.log.ranking import ranked
from kernelwright.evals.formats.kernelbench import split
from kernelwright.evals.formats.samples import Outcome, Sample, Samples, sample_of
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.definition import Foreign, fault_of
from kernelwright.problems.record.source import read_json, read_text
from kernelwright.sandbox.machine.atomic import write_atomically

KEY = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)")


class Metadata(Foreign):
    """Who hands in."""

    display_name: str = ""
    organization: str = ""
    notes: str = ""


class Submission(Foreign):
    """The whole file."""

    metadata: Metadata = Metadata()
    kernels: dict[str, str]


def read_submission(path: Path) -> Submission:
    """The file as it is; `ProblemError` where it is none."""
    try:
        return Submission.model_validate(read_json(read_text(path), str(path)))
    except ValidationError as error:
        raise ProblemError(f"{path}: {fault_of(error)}") from None


def read_samples(path: Path) -> Samples:
    """The candidates of a submission."""
    found = read_submission(path)
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for key, source in found.kernels.items():
        match = KEY.fullmatch(key)
        if match is None:
            refused.append((key, "the key is not of the form level_1_problem_2_sample_0"))
            continue
        author = found.metadata.display_name
        samples.append(sample_of(f"level{int(match[1])}/{int(match[2])}", source, int(match[3]), author=author))
    notes = tuple(f"field {field!r} is not known" for field in found.unknown())
    return Samples(format="leaderboard", samples=tuple(samples), refused=tuple(refused), notes=notes)


def submission_of(outcomes: Sequence[Outcome], metadata: Metadata) -> tuple[Submission, list[str]]:
    """The submission of these outcomes: of each problem the fastest right sample, else its first.

    Their board takes one sample a problem, number 0. Returns also why others are left out.
    """
    fitting, left = split(outcomes)
    by_problem: dict[tuple[int, int], list[Outcome]] = {}
    for outcome in (one for level in sorted(fitting) for one in fitting[level]):
        assert outcome.sample.bench_id is not None
        by_problem.setdefault(outcome.sample.bench_id, []).append(outcome)
    kernels = {
        f"level_{level}_problem_{number}_sample_0": _chosen(found).sample.candidate.source
        for (level, number), found in by_problem.items()
    }
    return Submission(metadata=metadata, kernels=kernels), left


def _chosen(outcomes: Sequence[Outcome]) -> Outcome:
    return next(iter(ranked(outcomes, lambda outcome: outcome.standing)), outcomes[0])


def write_submission(path: Path, submission: Submission) -> None:
    content: dict[str, Any] = submission.as_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=2) + "\n")
