"""KernelBench: folders of kernels, `eval_results.json`, baseline times, and submissions to its leaderboard."""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from kernelwright.agent.log.records import ranked
from kernelwright.evals.formats.samples import Outcome, Sample, Samples, sample_of
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.reading import Foreign
from kernelwright.problems.languages import LANGUAGES, ON_DEVICE, LanguageName
from kernelwright.problems.source import read_text
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER, Failed, Passed

FILE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)(_kernel)?")
EVALUATION = "eval_results.json"
GENERATION = "generation_config.yaml"
KNOWN_FILES = re.compile(
    r"eval_results\.json|pass_at_k_results\.json|analysis_results\.json|generation_config\.yaml|.*_prompt\.txt"
)
NOT_MEASURED = -1.0
"""The value in their files for a missing time."""
BUILT = ("run", "check", "time")
"""The stages of a failed candidate that did compile."""
FAULTS = {"scan": "compilation_error", "build": "compilation_error", "check": "correctness_issue"}
"""By stage, the key of their metadata that holds the reason; `runtime_error` for the others."""


BACKENDS = {name: one.kernelbench for name, one in LANGUAGES.items() if one.kernelbench}
"""By language, the `backend` that their evaluator takes a candidate under: it decides how a source is loaded, and in
which dtype. What runs on a processor, and PyTorch, has none."""
FOREIGN_BACKENDS = {
    "hip": "it is for AMD GPUs, and candidates are judged on NVIDIA's",
    "thunderkittens": "its headers come in no package; a candidate that brings them itself is one in cuda",
}
"""Backends without a language here, and why."""


def language_of_backend(backend: str) -> LanguageName:
    """Return the language of candidates for their backend; `ProblemError` with the reason where none is."""
    name = backend.lower()
    if name in FOREIGN_BACKENDS:
        raise ProblemError(f"KernelBench's backend {name!r} is not supported: {FOREIGN_BACKENDS[name]}")
    found = [language for language, theirs in BACKENDS.items() if theirs == name]
    if not found:
        there = ", ".join(dict.fromkeys([*BACKENDS.values(), *FOREIGN_BACKENDS]))
        raise ProblemError(f"KernelBench has no backend {backend!r}; there are: {there}")
    return name if name in found else found[0]


class EvalResult(Foreign):
    """One sample in `eval_results.json`. Times are means in ms."""

    sample_id: int
    compiled: bool
    correctness: bool
    metadata: dict[str, Any] = Field(default={})
    runtime: float = NOT_MEASURED
    runtime_stats: dict[str, Any] = Field(default={})


EvalResults = dict[str, list[EvalResult]]
"""By number of the problem, within one level."""


class TimeStats(Foreign):
    """One problem in a file of baseline times, in ms."""

    mean: float
    std: float
    min: float
    max: float
    num_trials: int
    hardware: str = ""
    device: str = ""


Baselines = dict[str, dict[str, TimeStats]]
"""By level, such as `level1`, and by file name of the problem."""


def run_files(folder: Path) -> list[Path]:
    """Return the kernel files of a run folder, or of a folder with one for each level."""
    return sorted(path for path in [*folder.glob("*.py"), *folder.glob("*/*.py")] if FILE.fullmatch(path.stem))


def read_run(folder: Path) -> Samples:
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for path in run_files(folder):
        match = FILE.fullmatch(path.stem)
        assert match is not None
        try:
            source = read_text(path)
        except ProblemError as error:
            refused.append((path.name, str(error)))
            continue
        samples.append(sample_of(f"level{int(match[1])}/{int(match[2])}", source, int(match[3])))
    strangers = [
        p for p in folder.iterdir() if p.is_file() and not FILE.fullmatch(p.stem) and not KNOWN_FILES.fullmatch(p.name)
    ]
    notes = (
        *_backend_notes(folder),
        *(f"{path.name} is not a kernel file of KernelBench" for path in sorted(strangers)),
    )
    samples.sort(key=lambda sample: (sample.bench_id or (0, 0), sample.number))
    return Samples(format="kernelbench", samples=tuple(samples), refused=tuple(refused), notes=notes)


def _backend_notes(folder: Path) -> Iterator[str]:
    path = folder / GENERATION
    named = re.search(r"^backend: *['\"]?(\w+)", read_text(path), re.MULTILINE) if path.is_file() else None
    try:
        if named is not None:
            language_of_backend(named[1])
    except ProblemError as error:
        yield str(error)


def write_run(folder: Path, outcomes: Sequence[Outcome]) -> list[str]:
    """Write kernels, results and baselines; a folder `level{N}` for each where there are several levels.

    Returns a sentence for each outcome that has no place in KernelBench.
    """
    fitting, left = split(outcomes)
    levels = sorted(fitting)
    for level in levels:
        place = folder if len(levels) == 1 else folder / f"level{level}"
        for outcome in fitting[level]:
            write_atomically(place / outcome.sample.bench_file, outcome.sample.candidate.source)
        write_atomically(place / EVALUATION, results_text(eval_results(fitting[level])))
    everything = [outcome for level in levels for outcome in fitting[level]]
    for name, baselines in baseline_times(everything).items():
        write_atomically(folder / "timing" / f"{name}.json", baselines_text(baselines))
    return left


def split(outcomes: Iterable[Outcome]) -> tuple[dict[int, list[Outcome]], list[str]]:
    """Return the outcomes by level, in the order of problems and samples; and for each other why it is left out."""
    fitting: dict[int, list[Outcome]] = defaultdict(list)
    left = []
    for outcome in sorted(outcomes, key=lambda one: (one.sample.bench_id or (0, 0), one.sample.number)):
        if outcome.sample.bench_id is None:
            left.append(f"{outcome.sample.target} has no level and number, so KernelBench has no place for it")
        else:
            fitting[outcome.sample.bench_id[0]].append(outcome)
    return fitting, left


def eval_results(outcomes: Iterable[Outcome]) -> EvalResults:
    """Return the results of one level, in the given order, by which their analysis pairs them with baselines."""
    found: EvalResults = defaultdict(list)
    for outcome in outcomes:
        assert outcome.sample.bench_id is not None
        found[str(outcome.sample.bench_id[1])].append(_eval_result(outcome))
    return dict(found)


def _eval_result(outcome: Outcome) -> EvalResult:
    metadata: dict[str, Any] = {"hardware": outcome.device, "device": _device(outcome)}
    if outcome.sample.candidate.language in BACKENDS:
        metadata["backend"] = BACKENDS[outcome.sample.candidate.language]
    verdict = outcome.verdict
    if isinstance(verdict, Failed):
        metadata[FAULTS.get(verdict.stage, "runtime_error")] = verdict.reason
        runtime, stats = NOT_MEASURED, dict[str, Any]()
    else:
        shown = ("speedup", "speedup_low", "speedup_high", "effort", "speedup_any", "comparison", "timing_clock")
        metadata["kernelwright"] = {key: value for key, value in report(verdict).items() if key in shown}
        found = stats_of(verdict.measurement.closest.candidate_ms, outcome)
        runtime, stats = found.mean, found.model_dump()
    return EvalResult(  # `as_json` writes only what is set
        sample_id=outcome.sample.number,
        compiled=isinstance(verdict, Passed) or verdict.stage in BUILT,
        correctness=outcome.passed,
        metadata=metadata,
        runtime=runtime,
        runtime_stats=stats,
    )


def _device(outcome: Outcome) -> str:
    return "cuda:0" if outcome.sample.candidate.language in ON_DEVICE else "cpu"


def stats_of(samples_ms: Sequence[float], outcome: Outcome) -> TimeStats:
    """Mean, standard deviation and ends of samples in ms that were taken for an outcome, as their files state them."""
    return TimeStats(
        mean=statistics.fmean(samples_ms),
        std=statistics.pstdev(samples_ms),
        min=min(samples_ms),
        max=max(samples_ms),
        num_trials=len(samples_ms),
        hardware=outcome.device,
        device=_device(outcome),
    )


def baseline_times(outcomes: Iterable[Outcome]) -> dict[str, Baselines]:
    """Return the times of each baseline by the name of its file: all samples by the clock of the latest."""
    samples: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    latest: dict[str, Outcome] = {}
    clocks: dict[str, str] = {}
    for outcome in outcomes:
        if not isinstance(outcome.verdict, Passed) or outcome.sample.bench_id is None:
            continue
        number, origin = outcome.sample.bench_id, outcome.problem.origin
        level, title = f"level{number[0]}", f"{number[1]}_{outcome.problem.name}.py"
        title = origin.title if origin and origin.title else title
        measurement = outcome.verdict.measurement
        if clocks.setdefault(title, measurement.timing_clock) != measurement.timing_clock:
            for levels in samples.values():
                levels[level].pop(title, None)
        latest[title], clocks[title] = outcome, measurement.timing_clock
        for pairing in measurement.pairings:
            samples[_baseline_file(pairing.baseline)][level][title] += pairing.baseline_ms
    return {
        name: {
            level: {title: stats_of(times, latest[title]) for title, times in problems.items()}
            for level, problems in levels.items()
        }
        for name, levels in samples.items()
    }


def _baseline_file(baseline: str) -> str:
    """Return KernelBench's name of the file; it has none of its own for eager at default precision."""
    if baseline in (EAGER, AS_SHIPPED):
        return "baseline_time_torch" + ("_as_shipped" if baseline == AS_SHIPPED else "")
    return f"baseline_time_torch_compile_inductor_{baseline.removeprefix(f'{COMPILED} ')}"


def results_text(results: EvalResults) -> str:
    return json.dumps({key: [result.as_json() for result in found] for key, found in results.items()}, indent=4) + "\n"


def baselines_text(baselines: Baselines) -> str:
    levels = {
        level: {title: time.as_json() for title, time in problems.items()} for level, problems in baselines.items()
    }
    return json.dumps(levels, indent=4) + "\n"


class Metadata(Foreign):
    display_name: str = ""
    organization: str = ""
    notes: str = ""


class Submission(Foreign):
    metadata: Metadata = Metadata()
    kernels: dict[str, str]


def read_samples(path: Path) -> Samples:
    found = Submission.read(path)
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for key, source in found.kernels.items():
        match = FILE.fullmatch(key)
        if match is None or match[4]:
            refused.append((key, "the key is not of the form level_1_problem_2_sample_0"))
            continue
        author = found.metadata.display_name
        samples.append(sample_of(f"level{int(match[1])}/{int(match[2])}", source, int(match[3]), author=author))
    notes = tuple(f"field {field!r} is not known" for field in found.unknown())
    return Samples(format="leaderboard", samples=tuple(samples), refused=tuple(refused), notes=notes)


def submission_of(outcomes: Sequence[Outcome], metadata: Metadata) -> tuple[Submission, list[str]]:
    """Return the submission of these outcomes: the fastest correct sample of each problem, else its first.

    Their board takes one sample a problem, number 0. Returns also why others are left out.
    """
    fitting, left = split(outcomes)
    by_problem: dict[tuple[int, int], list[Outcome]] = {}
    for outcome in (one for level in sorted(fitting) for one in fitting[level]):
        assert outcome.sample.bench_id is not None
        by_problem.setdefault(outcome.sample.bench_id, []).append(outcome)
    kernels = {
        f"level_{level}_problem_{number}_sample_0": [*ranked(found, lambda one: one.standing), found[0]][0]
        for (level, number), found in by_problem.items()
    }
    sources = {name: outcome.sample.candidate.source for name, outcome in kernels.items()}
    return Submission(metadata=metadata, kernels=sources), left


def write_submission(path: Path, submission: Submission) -> None:
    write_atomically(path, json.dumps(submission.as_json(), indent=2) + "\n")
