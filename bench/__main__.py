"""`python -m bench [NAME [WORD...]...]`: prints each comparison; exit code 1 if one breaks its promise.

Words that name no bench go to the one before them, such as the folder for `beside_kernelbench`.
"""

import importlib
import sys

BENCHES = {
    "placebo": "placebo.run",
    "gpu_placebo": "placebo.run_on_card",
    "warm": "warm.run",
    "gpu_warm": "warm.run_on_card",
    "throughput": "throughput.run",
    "gpu_throughput": "throughput.run_on_card",
    "scaling": "throughput.run_scaling",
    "builds": "builds.run",
    "cuda_builds": "builds.run_cuda",
    "gpu_catalog": "gpu_catalog.run",
    "gpu_kernels": "gpu_catalog.run",
    "cheats": "cheats.run",
    "mutants": "mutants.run",
    "sections": "sections.run",
    "program": "program.run",
    "beside_kernelbench": "beside_kernelbench.run",
    "others": "others.run",
}
"""By name, module and function."""
TAKE_WORDS = {"beside_kernelbench", "others", "gpu_placebo", "gpu_catalog", "gpu_kernels", "mutants", "sections"}
ALONE = [name for name in BENCHES if name not in ("gpu_kernels", "beside_kernelbench", "others")]
"""Benches that run without being named: once each, and none that has to be given a path."""


def main(words: list[str]) -> int:
    """Run the named benches, or all."""
    wanted: list[list[str]] = []
    for word in words:
        if word in BENCHES:
            wanted.append([word])
        elif wanted and wanted[-1][0] in TAKE_WORDS:
            wanted[-1].append(word)
        else:
            print(f"no bench {word!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
            return 2
    kept = True
    for name, *own in wanted or [[name] for name in ALONE]:
        module, _, function = BENCHES[name].partition(".")
        run = getattr(importlib.import_module(f"bench.{module}"), function)
        print((run.__doc__ or name).splitlines()[0])
        report = run(*own)
        print(report, flush=True)
        kept = kept and report.holds
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
