"""The structure of the packages: import order, cycles and size. `python -m tests.structure` prints the figures.

It fails where an import points up, where modules import each other in a cycle, and where a size is above its budget in
`[tool.kernelwright.budgets]` of pyproject.toml. A budget that stands more than 1 % above the measured figure fails too,
so that budgets fall with the code.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
BELOW: dict[str, tuple[str, ...]] = {
    "kernelwright_child": (),
    "problems": (),
    "prompts": ("problems",),
    "sandbox": ("problems", "kernelwright_child"),
    "agent": ("problems", "prompts", "sandbox"),
    "evals": ("problems", "prompts", "sandbox", "agent"),
    "programs": ("problems", "prompts", "sandbox", "agent", "evals", "kernelwright_child"),
    "kernelwright": ("problems", "prompts", "sandbox", "agent", "evals", "programs", "kernelwright_child"),
}
"""The packages that each package may import, beside itself."""
FOLDERS = {"programs": "kernelwright/programs"}
"""Where a package lies that is not a folder at the top."""
SLACK = 1.01
"""How far a budget may stand above the measured figure."""
TEXTS = frozenset({"catalog", "examples"})
"""Folders of programs that ship as data."""
CORPORA = frozenset({"hostile", "honest", "gpu"})
"""Folders of tests whose size has no budget: candidates that are judged."""

BACKENDS = frozenset({"backends.py"})
"""Where the device may be asked for; `gpu_*.py` is of a device alone."""
BRANCH = re.compile(
    r"""(?<!sandbox)\.gpu\b|\bis_cuda\b"""  # not the import of a backend
    r"""|(?:==|!=|\bin) \(?["'](?:cpu|cuda)["']|isinstance\([^)]*(?:Gpu|Session|Backend)"""
)
"""A branch on the device, or on what stands for it."""


class Module(NamedTuple):
    package: str
    room: str
    name: str
    path: Path


@cache
def modules() -> dict[str, Module]:
    """All shipped modules by their import name."""
    found = {}
    for package in BELOW:
        folder = ROOT / FOLDERS.get(package, package)
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if TEXTS & set(parts) or (package == "kernelwright" and parts[0] in BELOW):
                continue
            module = Module(package, ".".join(parts[:-1]), parts[-1], path)
            words = [word for word in (*_top(package), *parts) if word != "__init__"]
            found[".".join(words)] = module
    return found


def _top(package: str) -> tuple[str, ...]:
    return (package,) if package.startswith("kernelwright") else ("kernelwright", package)


def imports(path: Path) -> Iterator[str]:
    """The shipped modules that a file imports, also inside functions."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from ([full] if full in modules() else [node.module] if node.module in modules() else [])


def top_level_imports(path: Path) -> Iterator[str]:
    """The names of all modules that a file imports."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_that_point_up() -> list[str]:
    """Imports of a package that does not lie below."""
    wrong = []
    for name, module in modules().items():
        for target in sorted(set(imports(module.path))):
            package = modules()[target].package
            if package not in (module.package, *BELOW[module.package]):
                wrong.append(f"{name} -> {target}")
    return wrong


def cycles() -> list[str]:
    """Groups of modules that import each other, at import time or later."""
    graph = {name: sorted(set(imports(module.path)) - {name}) for name, module in modules().items()}
    return [" -> ".join(sorted(group)) for group in _strong(graph) if len(group) > 1]


def _strong(graph: dict[str, list[str]]) -> list[set[str]]:
    reach = {name: _reached(name, graph) for name in graph}
    left, found = set(graph), []
    while left:
        name = min(left)
        group = {other for other in reach[name] & left if name in reach[other]} | {name}
        found.append(group)
        left -= group
    return found


def _reached(name: str, graph: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        for other in graph[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def measured() -> dict[str, int]:
    shipped = [module.path for module in modules().values()]
    tests = [path for path in (ROOT / "tests").rglob("*.py") if not CORPORA & set(path.relative_to(ROOT).parts)]
    sizes = {"shipped_lines": _lines(shipped), "shipped_files": len(shipped), "test_lines": _lines(tests)}
    return sizes | {"device_branches": len(list(device_branches()))}


def device_branches() -> Iterator[str]:
    """Branches on the device in what judges, outside the backends: `path:line` of each."""
    for module in modules().values():
        is_judge = module.package in ("sandbox", "kernelwright_child") and module.room not in ("pool", "service")
        if is_judge and module.path.name not in BACKENDS and not module.path.name.startswith("gpu_"):
            for number, line in enumerate(module.path.read_text(encoding="utf-8").splitlines(), 1):
                if BRANCH.search(line):
                    yield f"{module.path.relative_to(ROOT)}:{number}"


def _lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def budgets() -> dict[str, int]:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return dict(tool["kernelwright"]["budgets"])


def off_budget(sizes: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """One sentence for each size above its budget, and for each budget far above its size."""
    found = []
    for name, size in sizes.items():
        if size > allowed[name]:
            found.append(f"{name} is {size}, above its budget of {allowed[name]}; make it smaller")
        elif allowed[name] > SLACK * size:
            found.append(f"{name} is {size}, far below its budget of {allowed[name]}; lower it in pyproject.toml")
    return found


def main() -> int:
    sizes, allowed = measured(), budgets()
    wrong = [f"import points up: {one}" for one in imports_that_point_up()]
    wrong += [f"import cycle: {one}" for one in cycles()]
    wrong += off_budget(sizes, allowed)
    for name, size in sizes.items():
        print(f"{name}: {size} (budget {allowed[name]})")
    by_package = Counter(module.package for module in modules().values())
    print("files by package: " + ", ".join(f"{package} {count}" for package, count in by_package.most_common()))
    for one in wrong:
        print(f"WRONG: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
