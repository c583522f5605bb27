"""`python -m bench [NAME [WORD...]...]`: run benches, each with the words behind its name; without a name list them.

`all` runs every bench that needs no words. The exit code is 1 where one breaks its promise.
"""

import importlib
import inspect
import sys

from kernelwright.sandbox.verdict.errors import SandboxError

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
    "cheats": "cheats.run",
    "mutants": "mutants.run",
    "sections": "sections.run",
    "beside_kernelbench": "beside_kernelbench.run",
    "others": "others.run",
    "results": "results.run",
}
"""By name, module and function: ten benches, some of them on a processor and on a GPU."""
NEED_WORDS = {"beside_kernelbench", "others", "results"}


def main(words: list[str]) -> int:
    """Run the named benches; return the exit code."""
    wanted: list[list[str]] = []
    for word in words:
        if word == "all":
            wanted += [[name] for name in BENCHES if name not in NEED_WORDS]
        elif word in BENCHES:
            wanted.append([word])
        elif wanted:
            wanted[-1].append(word)
        else:
            print(f"no bench {word!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
            return 2
    kept = True
    for name, *own in wanted or [[name] for name in BENCHES]:
        module, _, function = BENCHES[name].partition(".")
        run = getattr(importlib.import_module(f"bench.{module}"), function)
        said = (run.__doc__ or name).splitlines()[0]
        if not wanted:
            print(f"{name:20} {said}")
            continue
        if own and not inspect.signature(run).parameters:
            print(f"bench {name} takes no words, and {' '.join(own)} follows", file=sys.stderr)
            return 2
        print(said)
        try:
            report = run(*own)
        except SandboxError as error:
            print(error, file=sys.stderr)
            return 3
        print(report, flush=True)
        kept = kept and report.holds
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
