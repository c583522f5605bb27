"""From the folders of runs to the folder of results: records, kept kernels, index."""

from collections.abc import Sequence
from pathlib import Path

from bench.results.index import KERNELS, RECORDS, Index, kernel_file, records_in, write_index
from bench.results.records import Searched, searched, write_lines
from bench.results.selection import Selection, read_selection
from kernelwright.problems import ProblemError
from kernelwright.sandbox.machine.atomic import write_atomically


def keep(folder: Path, runs: Sequence[Path]) -> Index:
    """Take runs over. What was kept of the same problems in the same dtype is replaced. Raises `ProblemError`."""
    selection = read_selection(folder)
    fresh = [one for run in runs for one in searched(run)]
    _check(selection, fresh)
    new = {(one.address, one.dtype) for one in fresh}
    found = [one for one in records_in(folder) if (one.address, one.dtype) not in new] + fresh
    _check_entrants(found)
    found.sort(key=lambda one: one.place)
    write_lines(folder / RECORDS, found)
    _write_kernels(folder, found)
    return write_index(folder)


def _check(selection: Selection, found: Sequence[Searched]) -> None:
    """Nothing may be in the results that was not chosen beforehand, and nothing twice."""
    seen: set[tuple[str, str]] = set()
    for one in found:
        if one.address not in selection.problems or one.dtype not in selection.problems[one.address].dtypes:
            raise ProblemError(
                f"run {one.run} asks {one.address} in {one.dtype}, which was not chosen beforehand; leave that run out"
            )
        if (one.address, one.dtype) in seen:
            raise ProblemError(f"two of the runs ask {one.address} in {one.dtype}; give one of them")
        seen.add((one.address, one.dtype))


def _check_entrants(found: Sequence[Searched]) -> None:
    """A table is of one model, asked in one way, on one kind of device."""
    for dtype in {one.dtype for one in found}:
        said = {_entrant(one) for one in found if one.dtype == dtype}
        if len(said) > 1:
            told = "; ".join(", ".join(each) for each in sorted(said))
            raise ProblemError(f"the runs in {dtype} differ ({told}); keep those of one model and device")


def _entrant(one: Searched) -> tuple[str, ...]:
    search = one.header["config"]["search"]
    return search["model"], search["strategy"], search["target"], one.header["device"]


def _write_kernels(folder: Path, found: Sequence[Searched]) -> None:
    """The best kernel of each problem; kernels that are none any more go away."""
    texts: dict[Path, str] = {}
    for one in found:
        best = one.facts.best
        sources = {each.attempt.candidate.digest: each.source for each in one.attempts if each.attempt.candidate}
        if best is not None and (source := sources[best.candidate_digest]) is not None:
            texts[folder / kernel_file(one)] = source
    for path in (folder / KERNELS).rglob("*.py"):
        if path not in texts:
            path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
