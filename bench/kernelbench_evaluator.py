"""One candidate through KernelBench's own evaluator, as its script does it: a fresh process, 5 trials, 100 timed calls.

`python kernelbench_evaluator.py TREE PROBLEM CANDIDATE BACKEND BUILDS` prints a line of JSON with `correct` and
`speedup`. TREE is a checkout of ScalingIntelligence/KernelBench, BUILDS where it keeps builds; with `build` as a sixth
word it only compiles, and prints nothing. Of what its package imports for other purposes (providers, progress bars)
nothing is called here, so empty modules do.
"""

import contextlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

UNUSED = ("dotenv", "litellm", "openai", "tqdm", "datasets", "requests", "tomli", "modal", "pydra")


def main(tree: str, problem: str, candidate: str, backend: str, builds: str, *only: str) -> None:
    """Evaluate and print; where `only` is `build`, compile."""
    for name in UNUSED:
        with contextlib.suppress(ImportError):
            __import__(name)
        sys.modules.setdefault(name, Unused(name))
    sys.path.insert(0, str(Path(tree) / "src"))
    import torch
    from kernelbench.eval import build_compile_cache, eval_kernel_against_ref  # type: ignore[import-not-found]

    if only == ("build",):
        with contextlib.redirect_stdout(sys.stderr):
            build_compile_cache(Path(candidate).read_text(encoding="utf-8"), False, builds)
        return

    with contextlib.redirect_stdout(sys.stderr):
        result: Any = eval_kernel_against_ref(
            Path(problem).read_text(encoding="utf-8"),
            Path(candidate).read_text(encoding="utf-8"),
            num_correct_trials=5,
            num_perf_trials=100,
            measure_performance=True,
            build_dir=builds,
            device=torch.device("cuda:0"),
            backend=backend,
        )
    correct = bool(result and result.correctness)
    timed = correct and result.runtime > 0 and result.ref_runtime > 0
    print(json.dumps({"correct": correct, "speedup": result.ref_runtime / result.runtime if timed else None}))


class Unused(ModuleType):
    def __getattr__(self, name: str) -> "Unused":
        if name.startswith("__"):
            raise AttributeError(name)
        return Unused(name)

    def __call__(self, *_: object, **__: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    main(*sys.argv[1:])
