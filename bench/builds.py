"""Building twelve C++ candidates, unmodified ones with torch/extension.h: the stock way against ours.

Each side has one jailed builder a core. The builders have started before the clock does, since what a start costs is
measured elsewhere. Blocks of the same candidates alternate between the two ways. `cold` begins with an empty cache and
pays for its headers; `warm` has them; `stored` builds for the second time.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.sandbox.build import BuildStore, HeaderShelf, read_record, toolchain
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.machine.cache import VARIABLE
from kernelwright.sandbox.machine.workfolder import WorkFolder
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child import wire

CANDIDATES, BLOCK = 12, 4
LEAST_RATIO = 3
FLAGS: tuple[tuple[str, ...], ...] = ((), ("-O3",))
"""Half of the candidates ask for nothing, half for optimisation."""
BODIES = (
    "b[i] = a[i] > 0 ? a[i] : 0.01f * a[i];",
    "b[i] = std::tanh(a[i]) * std::log1p(std::exp(a[i]));",
    "b[i] = a[i] / (1.0f + std::exp(-a[i]));",
    "float s = 0; for (int64_t j = 0; j < 4; ++j) s += a[(i + j) % n]; b[i] = s;",
    "b[i] = std::fmax(a[i], 0.0f) - std::fmin(a[i], 1.0f);",
    "b[i] = 0.5f * a[i] * (1.0f + std::erf(a[i] * 0.70710678f));",
)
CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#include <cmath>

torch::Tensor run(torch::Tensor x) {{
    TORCH_CHECK(x.dtype() == torch::kFloat32, "float32 only");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const float* a = x.data_ptr<float>();
    float* b = out.data_ptr<float>();
    const int64_t n = x.numel();
    for (int64_t i = 0; i < n; ++i) {{ {body} }}
    return out;
}}
"""
module = load_inline(name="candidate_{number}", cpp_sources=SOURCE, functions=["run"], extra_cflags={flags})

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''


class Builds(NamedTuple):
    """Wall seconds for all candidates, by way, on all cores at once; and how each of our compilations was done."""

    seconds: dict[str, float]
    ways: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The rate of builds that were not cached, over the stock rate."""
        return self.seconds["stock"] / self.seconds["warm"]

    @property
    def holds(self) -> bool:
        """Whether the promise is kept, and by the shortcut rather than by luck."""
        return self.ratio >= LEAST_RATIO and "lean" in self.ways

    def __str__(self) -> str:
        rows = [
            f"  {way:<8} {seconds:7.1f} s   {60 * CANDIDATES / seconds:7.1f} a minute"
            f"   {self.seconds['stock'] / seconds:6.1f} times the stock rate"
            for way, seconds in self.seconds.items()
        ]
        return "\n".join(
            [*rows, f"  promised: warm at least {LEAST_RATIO} times; ways: {', '.join(sorted(set(self.ways)))}"]
        )


def run() -> Builds:
    """Build all of them in every way; about five minutes of two idle cores."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as cache:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = cache
        toolchain.cache_clear()
        try:
            return _run()
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
            toolchain.cache_clear()


def _run() -> Builds:
    found = toolchain()
    if found is None or not found.is_gcc:
        raise SystemExit("this bench needs torch and g++")
    plan = found.plan(Settings().memory_bytes)
    headers_s = _wall(lambda: _each(HeaderShelf(found).prepare, list(FLAGS)))
    sources = [
        CANDIDATE.format(body=BODIES[number % len(BODIES)], number=number, flags=list(FLAGS[number % len(FLAGS)]))
        for number in range(CANDIDATES)
    ]
    seconds, ways = {"stock": 0.0, "warm": 0.0}, []
    for start in range(0, CANDIDATES, BLOCK):
        block = sources[start : start + BLOCK]
        for way in ("stock", "warm") if start % (2 * BLOCK) else ("warm", "stock"):
            taken, told = _build(block, {} if way == "stock" else plan)
            seconds[way] += taken
            ways += told
    seconds["cold"] = seconds["warm"] + headers_s
    seconds["stored"] = _wall(lambda: _each(_restore, sources))
    return Builds(seconds, tuple(ways))


def _build(sources: list[str], plan: dict[str, Any]) -> tuple[float, list[str]]:
    """Build a block with all cores; its wall seconds, and the ways that were taken by plan."""
    builders = [_Builder(source) for source in sources]
    try:
        for builder in builders:
            builder.session.greet()
        taken = _wall(lambda: _each(lambda builder: builder.build(plan), builders))
        return taken, [way for builder in builders for way in builder.keep()]
    finally:
        for builder in builders:
            builder.close()


class _Builder:
    """A started builder with a candidate, as the judge has them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.folder = WorkFolder()
        self.session = Session("builder", self.folder, Settings(threads=1))

    def build(self, plan: dict[str, Any]) -> None:
        path = self.folder.write("candidate.py", self.source)
        build = str(self.folder.path / "build")
        message = {"op": "build", "source": str(path), "entry": "ModelNew", "built": build, "shortcuts": plan}
        self.session.ask(message | {"arguments": wire.pack([], [])}, Settings().build_timeout_s)

    def keep(self) -> list[str]:
        """Put what was built into the store; the ways of its compilations."""
        self.session.close()
        BuildStore().keep(BuildStore.key(self.source, toolchain()), self.folder.path / "build")
        return [compilation.way for compilation in read_record(self.folder.path).compilations]

    def close(self) -> None:
        self.session.close()
        self.folder.close()


def _restore(source: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not BuildStore().restore(BuildStore.key(source, toolchain()), Path(folder)):
            raise SystemExit("a finished build was not found again")


def _each(do: Callable[[Any], Any], items: list[Any]) -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(do, items))


def _wall(do: Callable[[], None]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start
