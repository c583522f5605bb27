"""`python -m bench [NAME [WORD...]...]`: prints each comparison; exit code 1 if one breaks its promise.

Words that name no bench go to the one before them, such as the folder for `kernelbench`.
"""

import importlib
import pkgutil
import sys

import bench

MACHINERY = {
    "__main__",
    "chosen",
    "comparison",
    "foreign",
    "mutation",
    "recorded",
    "results",
    "same_process",
    "serial_evaluator",
    "simulated",
    "stamping",
    "varied",
}

WITH_WORDS = {"kernelbench", "beside_kernelbench", "others"}
"""Those that need to be told what to look at; without names they are not run."""
TAKE_WORDS = {*WITH_WORDS, "gpu_placebo", "mutants", "sections"}
"""Those that may be told."""


def main(names: list[str]) -> int:
    """Run the named benches, or all."""
    found = sorted({module.name for module in pkgutil.iter_modules(bench.__path__)} - MACHINERY)
    wanted: list[list[str]] = []
    for before, name in zip(["", *names], names, strict=False):
        if name in found and before != "--subject":
            wanted.append([name])
        elif wanted and wanted[-1][0] in TAKE_WORDS:
            wanted[-1].append(name)
        else:
            print(f"no bench {name!r}; there are: {', '.join(found)}", file=sys.stderr)
            return 2
    kept = True
    for name, *words in wanted or [[name] for name in found if name not in WITH_WORDS]:
        module = importlib.import_module(f"bench.{name}")
        print((module.__doc__ or name).splitlines()[0])
        comparison = module.run(*words)
        print(comparison, flush=True)
        kept = kept and comparison.holds
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
