"""A plain folder of candidates, as `kernelwright score` reads it: a folder for each problem, a file for each sample."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.evals.formats import kernelbench
from kernelwright.evals.formats.samples import Sample, Samples, sample_of
from kernelwright.evals.scores.collecting import collect_candidates, read_source
from kernelwright.problems.formats.reading import safe_name
from kernelwright.sandbox.machine.atomic import write_atomically


def read_folder(folder: Path, problems: Mapping[str, object]) -> Samples:
    """The candidates of a folder for the problems of these names; each file of a problem is one sample."""
    files, strangers = collect_candidates(folder, problems)
    counts: dict[str, int] = {}
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for file in files:
        try:
            source = read_source(file.path)
        except OSError as error:
            refused.append((file.name, f"it can not be read ({error.strerror or error})"))
            continue
        number = counts.get(file.problem, 0)
        counts[file.problem] = number + 1
        samples.append(sample_of(file.problem, source, number, name=Path(file.name).stem))
    notes = tuple(f"{name} belongs to no problem" for name in strangers)
    return Samples(format="plain", samples=tuple(samples), refused=tuple(refused), notes=notes)


Places = Mapping[str, Sequence[str]]
"""By target, the names of the problems that its candidates are for."""


def write_folder(folder: Path, samples: Sequence[Sample], places: Places | None = None) -> list[Path]:
    """Write each sample into the folder of its problem, or of each problem that `places` names for its target.

    A sample of KernelBench lies in the folder itself under its usual name, which tells its problem. Returns the files.
    """
    written: list[Path] = []
    for sample in samples:
        for place in [""] if sample.bench_id else (places or {}).get(sample.target, [sample.target]):
            path = folder / (safe_name(place.replace("/", "_")) if place else "") / _file_name(sample)
            if path in written:
                path = path.with_stem(f"{path.stem}_{sample.number}_{sample.candidate.digest[:8]}")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, sample.candidate.source)
            written.append(path)
    return written


def _file_name(sample: Sample) -> str:
    if sample.bench_id:
        return kernelbench.file_name(sample)
    return f"{safe_name(sample.name)}.py" if sample.name else f"sample_{sample.number}.py"
