"""`python -m bench [NAME...]`: prints each comparison; exit code 1 if one breaks its promise."""

import importlib
import pkgutil
import sys

import bench

MACHINERY = {"__main__", "chosen", "comparison", "recorded", "same_process", "serial_evaluator"}


def main(names: list[str]) -> int:
    """Run the named benches, or all."""
    found = sorted({module.name for module in pkgutil.iter_modules(bench.__path__)} - MACHINERY)
    unknown = [name for name in names if name not in found]
    if unknown:
        print(f"no bench {unknown[0]!r}; there are: {', '.join(found)}", file=sys.stderr)
        return 2
    kept = True
    for name in names or found:
        module = importlib.import_module(f"bench.{name}")
        print((module.__doc__ or name).splitlines()[0])
        comparison = module.run()
        print(comparison, flush=True)
        kept = kept and comparison.holds
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
