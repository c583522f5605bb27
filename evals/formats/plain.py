"""A plain folder of candidates, as `kernelwright score` reads it: a folder for each problem, a file for each sample."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.evals.formats import kernelbench
from kernelwright.evals.formats.samples import Sample
from kernelwright.problems.formats.reading import safe_name
from kernelwright.sandbox.machine.atomic import write_atomically

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
