"""Parts of every bench: what is chosen, rows that outlast a run, and the report that ends it.

`KERNELWRIGHT_BENCH=NAME,NAME` picks parts of a bench, `KERNELWRIGHT_SECONDS` ends it in time, and `KERNELWRIGHT_OUT`
names the folder of its rows (`runs`). `KERNELWRIGHT_PART=K/N` takes every N-th item from the K-th on, counted from 0:
one process for each GPU, chosen by `CUDA_VISIBLE_DEVICES`.
"""

import contextlib
import gzip
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kernelwright.agent.providers.recorded import read_session, session_folder
from kernelwright.agent.replies import Extraction, extract
from kernelwright.problems.formats.reading import json_lines
from kernelwright.prompts import Target
from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.toolchain import toolchain
from kernelwright.sandbox.verdict.errors import SandboxError

STARTED = time.monotonic()
Item = TypeVar("Item")


class Report(NamedTuple):
    """The end of a bench: its text, and whether every promise is kept."""

    text: str
    holds: bool = True

    def __str__(self) -> str:
        return self.text


NO_DEVICE = Report("  the driver sees no CUDA device: nothing to tell")


def chosen(everything: Iterable[str]) -> list[str]:
    """Return the names that the environment picks; without any, everything."""
    picked = os.environ.get("KERNELWRIGHT_BENCH", "")
    return picked.split(",") if picked else list(everything)


def of_this_part(items: Iterable[Item]) -> list[Item]:
    """Return the items that this process takes among several."""
    part = os.environ.get("KERNELWRIGHT_PART", "0/1")
    found = re.fullmatch(r"(\d+)/(\d+)", part)
    if found is None or int(found[1]) >= int(found[2]):
        raise SandboxError(f"KERNELWRIGHT_PART is {part!r}; give K/N with K from 0 to N - 1, such as 0/4")
    return list(items)[int(found[1]) :: int(found[2])]


def is_in_time() -> bool:
    """Return whether fewer seconds have passed since the start than the environment allows."""
    return time.monotonic() - STARTED < float(os.environ.get("KERNELWRIGHT_SECONDS", "inf"))


class Kept:
    """Rows as lines of JSON in a file, each on disk before the next."""

    def __init__(self, name: str) -> None:
        self.path = Path(os.environ.get("KERNELWRIGHT_OUT", "runs")) / name

    def rows(self, *paths: str) -> list[dict[str, Any]]:
        """Return those of the files, packed or not; without any those of its own."""
        files = [Path(path) for path in paths] or [self.path] * self.path.exists()
        texts = (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files)
        return [json.loads(line) for text in texts for line in json_lines(text.decode())]

    def add(self, row: dict[str, Any]) -> None:
        """Append one; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def output_of(command: Sequence[str], limit_s: float | None = None, **environment: str) -> tuple[str, float]:
    """Return what a command prints, nothing where it takes longer than the limit, and its wall seconds."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
        said = done.stdout
    except subprocess.TimeoutExpired:
        said = ""
    return said, time.perf_counter() - start


RESAMPLES = 10_000


def interval_by_problem(found: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of all values; problems are drawn, with all of theirs."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for name, value in found:
        by_problem[name].append(value)
    sums = np.array([sum(values) for values in by_problem.values()])
    counts = np.array([len(values) for values in by_problem.values()])
    drawn = np.random.RandomState(0).randint(len(sums), size=(RESAMPLES, len(sums)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), (0.025, 0.975))
    return float(low), float(high)


def spread(seconds: Sequence[float]) -> str:
    """Return the median of some seconds, the least and the most, as text."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


@contextlib.contextmanager
def empty_cache() -> Iterator[Path]:
    """Begin with nothing built: a temporary folder, whose `cache` takes the place of the user's."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as folder:
        os.environ[VARIABLE] = f"{folder}/cache"
        toolchain.cache_clear()
        try:
            yield Path(folder)
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
            toolchain.cache_clear()


def recorded_source(problem: str, target: Target, index: int = -1, dtype: str | None = None) -> str:
    """Return the candidate of an entry of a recorded session, counted from 0; of the last one by default."""
    entry = read_session(problem, target, dtype=dtype).entries[index]
    found = extract((session_folder(problem, target, dtype=dtype) / entry.file).read_text(encoding="utf-8"))
    assert isinstance(found, Extraction), found
    return found.source
