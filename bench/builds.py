"""Building 28 varied C++ answers, unmodified ones with torch/extension.h, one after the other: stock against ours.

The stock way is a fresh process for each, as evaluators do it: it imports torch and calls `load_inline`. Ours is a
jailed builder for each; what the light header needs is made while the first are built, and told apart. Both begin with
nothing built. The two ways take turns. `stored` is ours for the second time. `KERNELWRIGHT_BENCH=0,5,23` picks rows of
`bench/varied.py`. Compilers' processor seconds stand beside, since walls tell little of a busy machine.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.chosen import chosen
from bench.varied import ROWS, answer
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.build import BuildStore, read_record
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.storage import VARIABLE, all_entries, limit_bytes
from kernelwright.sandbox.toolchain import MakingHeaders, missing_headers, toolchain
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import wire

LEAST_RATIO = 3
LIMIT_S = 3600.0
"""For one build, however busy the machine is."""


class Built(NamedTuple):
    """One build of ours."""

    seconds: float
    making_s: float
    """So long parts of the light header were made beside it."""
    refused: str
    """The candidate's error, or empty."""
    ways: tuple[str, ...]


class Builds(NamedTuple):
    """Wall seconds of each answer: the stock way, ours, and ours again."""

    rows: list[tuple[str, float, Built, float]]
    stock_cpu_s: float
    kept_bytes: int

    @property
    def ratio(self) -> float:
        """How many times as fast ours are in sum, with all that was made for them."""
        return sum(row[1] for row in self.rows) / sum(row[2].seconds for row in self.rows)

    @property
    def holds(self) -> bool:
        """Whether the promise is kept, everything was built and what is kept is below its limit."""
        failed = [row for row in self.rows if row[2].refused]
        return self.ratio >= LEAST_RATIO and not failed and self.kept_bytes <= limit_bytes()

    def __str__(self) -> str:
        lines = [
            f"  {name:<42} stock {stock:6.1f} s   ours {ours.seconds:6.1f} s   stored {stored:5.2f} s   "
            f"{'; '.join((*ours.ways, ours.refused))}"
            for name, stock, ours, stored in self.rows
        ]
        making = sum(row[2].making_s for row in self.rows)
        total = [sum(row[1] for row in self.rows), sum(row[2].seconds for row in self.rows)]
        return "\n".join(
            [
                *lines,
                f"  in sum: stock {total[0]:.0f} s ({self.stock_cpu_s:.0f} s of processors), ours {total[1]:.0f} s, "
                f"beside {making:.0f} s of which the light header was made: {self.ratio:.1f} times as fast (promised: "
                f"{LEAST_RATIO}); {self.kept_bytes / 2**20:.0f} MiB are kept",
            ]
        )


def run() -> Builds:
    """About fifteen minutes of two idle cores."""
    numbers = [int(number) for number in chosen(map(str, range(len(ROWS))))]
    rows, cpu_s = [], 0.0
    with empty_cache():
        for place, number in enumerate(numbers):
            source, taken = answer(number), {}
            for way in ("stock", "ours") if place % 2 else ("ours", "stock"):
                taken[way] = build_stock(source) if way == "stock" else build(source, Settings())
            start = time.perf_counter()
            _restore(source)
            rows.append((ROWS[number][0] or "(no flags)", taken["stock"], taken["ours"], time.perf_counter() - start))
            print(f"  {number}: stock {taken['stock']:.1f} s, ours {taken['ours'].seconds:.1f} s", flush=True)
        kept = all_entries().size_bytes()
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    return Builds(rows, cpu_s, kept)


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    """A cache of our own that begins empty."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as cache:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = cache
        toolchain.cache_clear()
        try:
            yield
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
            toolchain.cache_clear()


def build_stock(source: str) -> float:
    """The wall seconds of a fresh process that imports the candidate, until it ends, well or not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "candidate.py")
        path.write_text(source)
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, str(path)],
            env=os.environ | {"TORCH_EXTENSIONS_DIR": folder},
            capture_output=True,
            check=False,
        )
        return time.perf_counter() - start


def build(source: str, settings: Settings) -> Built:
    """Build it as the judge does: a jailed builder, and beside it what of the light header is missing."""
    found = toolchain()
    if found is None or not found.is_gcc:
        raise SystemExit("this bench needs torch and g++")
    folder, start, refused = WorkFolder(), time.perf_counter(), ""
    try:
        missing = missing_headers(found, source)
        with MakingHeaders(found, missing) as making, Session("builder", folder, settings) as session:
            path = folder.write("candidate.py", source)
            plan = found.plan(settings.memory_bytes, cuda_architectures=backend_of(settings).architecture)
            message = {"op": "build", "source": str(path), "entry": "ModelNew", "built": str(folder.path / "build")}
            session.greet()
            try:
                session.ask(message | {"arguments": wire.pack([], []), "shortcuts": plan}, LIMIT_S)
            except Refused as error:
                refused = error.reason
            seconds = time.perf_counter() - start
        BuildStore().keep(BuildStore.key(source, found), folder.path / "build")
        return Built(seconds, making.seconds, refused, read_record(folder.path).ways)
    finally:
        folder.close()


def _restore(source: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not BuildStore().restore(BuildStore.key(source, toolchain()), Path(folder)):
            raise SystemExit("a finished build was not found again")
