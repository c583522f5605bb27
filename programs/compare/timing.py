"""In the user's process: the program's calls by its own code, by kernels and compiled, timed in turn."""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelwright.programs.apply.guarded import NoPlace, Replacement, replacements
from kernelwright.programs.apply.kept import apply
from kernelwright.programs.compare.calls import SEED, KeptCall
from kernelwright.programs.compare.comparison import ALONE, KERNELS
from kernelwright.sandbox.timing.paired import BACKWARDS
from kernelwright.sandbox.timing.paired_samples import PLACEBO
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED

WARM_UP = 3
PAIRS, MOST_PAIRS, BUDGET_S = 4, 20, 8.0
"""Samples of each side in a process: at least, at most, and for how long more are taken."""


class Sides:
    """The program's calls, made in one of several ways: by the modules' own code, by kernels, compiled."""

    def __init__(self, calls: Sequence[KeptCall], run: Path, compiled: Sequence[str]) -> None:
        """Put the run's kernels into every root that has a place for one. `NoPlace` where none has."""
        self.calls, self.notes = calls, list[str]()
        self.kernels = _put_in(calls, run)
        self.parts = list(dict.fromkeys(one.part for one in self.kernels))
        self.switch(())
        self._compiled: dict[str, dict[int, Callable[..., Any]]] = {}
        for mode in compiled:
            self._compile(f"{COMPILED} {mode}", mode)

    @property
    def names(self) -> list[str]:
        """All ways; one for each part alone where there is more than one part."""
        alone = [f"{ALONE}{part}" for part in self.parts] if len(self.parts) > 1 else []
        return [KERNELS, AS_SHIPPED, *self._compiled, *alone, PLACEBO]

    def switch(self, parts: Sequence[str]) -> None:
        """Let the kernels of these parts stand in, and no others."""
        for kernel in self.kernels:
            kernel.stand(kernel.part in parts)

    def made(self, name: str) -> Callable[[], list[Any]]:
        """The calls in that way; what they give."""
        alone = [name.removeprefix(ALONE)] if name.startswith(ALONE) else []
        self.switch(self.parts if name == KERNELS else alone)
        roots = self._compiled.get(name, {})
        return lambda: [call.outputs(roots.get(id(call.root), call.root), seeded=False) for call in self.calls]

    def sample_ms(self, name: str) -> float:
        """The time of all calls once."""
        run = self.made(name)
        for call in self.calls:
            call.forget_gradients()
        torch.manual_seed(SEED)
        _wait()
        start = time.perf_counter()
        outputs = run()
        _wait()
        taken = time.perf_counter() - start
        del outputs
        return 1e3 * taken

    def counts(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """By place, how often a kernel and how often the module's own code is taken in one sample, with all kernels."""
        for kernel in self.kernels:
            kernel.forget_counts()
        self.sample_ms(KERNELS)
        taken = {kernel.name: kernel.taken for kernel in self.kernels}
        return taken, {kernel.name: dict(kernel.fallbacks) for kernel in self.kernels if kernel.fallbacks}

    def samples(self) -> dict[str, list[float]]:
        """By side, its times in ms; sample i of all sides within the same moments. The placebo is eager once more."""
        found: dict[str, list[float]] = {name: [] for name in self.names}
        for name in self.names:
            for _ in range(WARM_UP):
                self.sample_ms(name)
        gc.collect()
        gc.disable()
        try:
            start = time.monotonic()
            while len(found[KERNELS]) < MOST_PAIRS:
                turn = len(found[KERNELS])
                if turn >= PAIRS and turn % PAIRS == 0 and time.monotonic() - start > BUDGET_S:
                    break
                for name in self.names[::-1] if turn % PAIRS in BACKWARDS else self.names:
                    found[name].append(self.sample_ms(name))
        finally:
            gc.enable()
        return found

    def _compile(self, name: str, mode: str) -> None:
        try:
            torch._dynamo.reset()
            roots = {id(call.root): torch.compile(call.root, mode=mode) for call in self.calls}
            self._compiled[name] = roots
            self.made(name)()
        except Exception as error:  # a compiler may fail in any way, and the program has others
            self._compiled.pop(name, None)
            self.notes.append(f"{name} failed: {str(error).strip().splitlines()[0][:200]}")


def _put_in(calls: Sequence[KeptCall], run: Path) -> list[Replacement]:
    """The kernels that found a place in the roots of the calls."""
    found: dict[int, Replacement] = {}
    refused = "the program called no module"
    for root in dict.fromkeys(call.root for call in calls):
        try:
            apply(root, run)
        except NoPlace as error:
            refused = str(error)
        found |= {id(one): one for one in replacements(root)}
    if not found:
        raise NoPlace(refused)
    return list(found.values())


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
