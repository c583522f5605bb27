"""From the folders of runs to the folder of results: records, kept kernels, index."""

from collections.abc import Sequence
from pathlib import Path

from bench.results.index import KERNELS, RECORDS, Index, kernel_file, records_in, write_index
from bench.results.records import Searched, searched, write_lines
from bench.results.selection import FILE, Selection, read_selection
from kernelwright.problems import ProblemError
from kernelwright.sandbox.storage import write_atomically


def keep(folder: Path, runs: Sequence[Path], replace: bool = False) -> Index:
    """Take runs over, whole or as far as they have come. Raises `ProblemError`, and then nothing is changed.

    What was kept of the same run is replaced; what another run came to for the same problem only with `replace`.
    """
    selection = read_selection(folder)
    fresh = [one for run in runs for one in searched(run)]
    _check(selection, fresh)
    new = {(one.address, one.dtype): one.run for one in fresh}
    kept = records_in(folder)
    others = [one for one in kept if new.get((one.address, one.dtype), one.run) != one.run]
    if others and not replace:
        told = ", ".join(f"{one.address} in {one.dtype}" for one in others)
        raise ProblemError(f"another run was kept of {told}; say --replace if this one is to take its place")
    found = [one for one in kept if (one.address, one.dtype) not in new] + fresh
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
        if one.source_sha256 != selection.problems[one.address].sha256:
            raise ProblemError(f"run {one.run} asks another {one.address} than was chosen; leave that run out")
        _check_settings(selection, one)
        if (one.address, one.dtype) in seen:
            raise ProblemError(f"two of the runs ask {one.address} in {one.dtype}; give one of them")
        seen.add((one.address, one.dtype))


def _check_settings(selection: Selection, one: Searched) -> None:
    """A run is made as the selection says, with nothing of the prompts and none of the judge's defences left out."""
    config = one.header["config"]
    config = config | {"judging": config["judging"] | {"compiled": " ".join(config["judging"]["compiled"])}}
    asked = {"judging.compiled": "", "judging.without": [], "judging.jail_without": [], "search.without": []}
    for place, wanted in (asked | selection.settings).items():
        group, _, key = place.partition(".")
        had = config[group].get(key)
        if had != wanted:
            raise ProblemError(f"run {one.run} has {place} {had!r}, where {FILE} says {wanted!r}; leave that run out")
    if config["judging"]["jail"] == "off":
        raise ProblemError(f"run {one.run} was judged without a jail; leave that run out")


def _check_entrants(found: Sequence[Searched]) -> None:
    """A table is of one model, asked in one way, on one kind of device."""
    for dtype in {one.dtype for one in found}:
        said = {_entrant(one) for one in found if one.dtype == dtype}
        if len(said) > 1:
            told = "; ".join(", ".join(each) for each in sorted(said))
            raise ProblemError(f"the runs in {dtype} differ ({told}); keep those of one model and device")


def _entrant(one: Searched) -> tuple[str, ...]:
    search = one.header["config"]["search"]
    torch = one.header["versions"].get("torch", "unknown")
    return search["model"], search["strategy"], search["target"], one.header["device"], f"torch {torch}"


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
