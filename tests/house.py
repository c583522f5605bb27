"""The house as it stands, in figures: `python -m tests.house` prints them, and fails where one is beyond its bound.

What is not yet at its bound is noted in `OWED`, and may only fall: a figure that is better than noted fails too, until
the note says so.

Rooms are folders of the packages. `ORDER` says which room may import which: those that stand before it in its package,
and the packages that `BELOW` names. Every import counts, also one inside a function.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
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
"""The packages that each may import, beside itself."""
ORDER: dict[str, tuple[str, ...]] = {
    "kernelwright_child": ("jail", "", "building", "floor", "gpu", "programs"),
    "problems": ("record", "texts", "formats", ""),
    "prompts": ("",),
    "sandbox": (
        "verdict", "machine", "build", "jail", "tensors", "correctness", "authenticity", "floor", "calls", "timing",
        "judge", "pool", "pool.workers", "pool.ray", "pool.remote", "pool.front", "service", "",
    ),
    "agent": (
        "replies", "log", "strategies", "steering", "briefs", "providers", "providers.servers", "providers.simulated",
        "providers.kinds", "engine", "",
    ),
    "evals": ("figures", "scores", "runs", "boards", "report", "inspector", "formats", ""),
    "programs": ("record", "capture", "split", "apply", "package", "compare", ""),
    "kernelwright": (
        "integrations", "commands.options", "commands.judging", "commands.search", "commands.results",
        "commands.programs", "commands", "",
    ),
}  # fmt: skip
"""The rooms of each package, lowest first; the empty name is the package's own folder."""
OWED: dict[str, int] = {}
"""How many of each there still are; what is not named here has none. To be lowered, never raised."""
MOST_FILES = 15
MOST_TO_READ = 9_000
"""Lines of the reading order: an afternoon."""
TEXTS = frozenset({"catalog", "examples"})
"""Programs that ship as texts: data, not part of the house."""


class Module(NamedTuple):
    """One source file."""

    package: str
    room: str
    name: str
    path: Path

    @property
    def where(self) -> str:
        """Package and room as one word."""
        return f"{self.package}.{self.room}".rstrip(".")


@cache
def modules() -> dict[str, Module]:
    """All that ships, by the name that it is imported by."""
    found = {}
    for package in BELOW:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT / package).with_suffix("").parts
            if TEXTS & set(parts) or (package == "kernelwright" and parts[0] in BELOW):
                continue
            module = Module(package, ".".join(parts[:-1]), parts[-1], path)
            words = [word for word in (*_top(package), *parts) if word != "__init__"]
            found[".".join(words)] = module
    return found


def _top(package: str) -> tuple[str, ...]:
    return (package,) if package.startswith("kernelwright") else ("kernelwright", package)


def imports(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from ([full] if full in modules() else [node.module] if node.module in modules() else [])


def top_level_imports(path: Path) -> Iterator[str]:
    """Whatever a file imports, by the names that stand there."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def arrows() -> list[str]:
    """Imports that run back up: from a room to one above it, or to a package that is not below."""
    wrong = []
    for name, module in modules().items():
        for target in sorted(set(imports(module.path))):
            other = modules()[target]
            if not _may(module, other):
                wrong.append(f"{name} -> {target}")
    return wrong


def _may(module: Module, other: Module) -> bool:
    if module.package != other.package:
        return other.package in BELOW[module.package]
    if module.name == "__init__":  # offers what lies in its room, and in those below it
        return True
    order = ORDER[module.package]
    return order.index(other.room) <= order.index(module.room)


def circles() -> list[str]:
    """Modules that import each other, by whatever way, at import time or later."""
    graph = {name: sorted(set(imports(module.path)) - {name}) for name, module in modules().items()}
    return [" -> ".join(sorted(group)) for group in _strong(graph) if len(group) > 1]


def _strong(graph: dict[str, list[str]]) -> list[set[str]]:
    """The strongly connected components: what each reaches, and is reached by."""
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


def files() -> dict[str, int]:
    """How many files lie directly in each folder of the packages."""
    folders = {path.parent for module in modules().values() for path in [module.path]}
    return {
        str(folder.relative_to(ROOT)): sum(path.is_file() for path in folder.iterdir() if path.suffix != ".pyc")
        for folder in sorted(folders)
    }


def classes_twice() -> list[str]:
    """Public class names that stand for two things, with the modules."""
    homes = defaultdict(list)
    for name, module in modules().items():
        for node in _tree(module.path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(homes.items()) if len(where) > 1]


def modules_twice() -> list[str]:
    """Names that two modules of sibling rooms have, or a module and a folder that it lies in."""
    homes = defaultdict(list)
    for name, module in modules().items():
        if module.name != "__init__":
            homes[module.package, module.name].append(name)
            if module.name in (module.package, *module.room.split(".")):
                homes[module.package, module.name].append(module.where)
    return [f"{name}: {', '.join(where)}" for (_, name), where in sorted(homes.items()) if len(where) > 1]


def lines() -> Counter[str]:
    """Lines of source that ship, by package."""
    found: Counter[str] = Counter()
    for module in modules().values():
        found[module.package] += len(module.path.read_text(encoding="utf-8").splitlines())
    return found


def reading_order() -> list[str]:
    """The files that AGENTS.md gives to be read, in its order."""
    section = re.search(r"^## Reading order$(.*?)(?=^## )", (ROOT / "AGENTS.md").read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"`([\w./]+/[\w.]+\.\w+)`", section[1]) if section else []


def found() -> dict[str, list[str]]:
    """What nobody wants to find, by its name in the figures."""
    return {
        "folders with too many files": [f"{name} ({count})" for name, count in files().items() if count > MOST_FILES],
        "class names used twice": classes_twice(),
        "module names used twice among siblings and parents": modules_twice(),
        "imports that run back up": arrows(),
        "circles": circles(),
        "files of the reading order that are not there": [one for one in reading_order() if not (ROOT / one).is_file()],
    }


def off(counts: dict[str, int], to_read: int) -> list[str]:
    """What is beyond its bound, or better than noted; a sentence each."""
    said = []
    for what, count in counts.items():
        owed = OWED.get(what, 0)
        if count > owed:
            said.append(f"{what}: {count}, at most {owed}; mend it, the bound is not raised")
        elif count < owed:
            said.append(f"{what}: {count}, better than the {owed} of OWED in tests/house.py; note it there")
    if to_read > MOST_TO_READ:
        said.append(f"lines of the reading order: {to_read}, at most {MOST_TO_READ}; take files out, in AGENTS.md")
    return said


def main() -> int:
    """Print the figures; 1 where one is not as noted."""
    there = found()
    counted = lines()
    each = ", ".join(f"{package} {count}" for package, count in counted.most_common())
    order = [ROOT / one for one in reading_order() if (ROOT / one).is_file()]
    to_read = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in order)
    print(f"files directly in a folder, at most {MOST_FILES}: {max(files().values())}")
    for what, ones in there.items():
        print(f"{what}: {len(ones)}")
        for one in ones:
            print(f"  {one}")
    print(f"shipped lines: {counted.total()} ({each})")
    print(f"lines of the reading order, at most {MOST_TO_READ}: {to_read} ({len(order)} files)")
    wrong = off({what: len(ones) for what, ones in there.items()}, to_read)
    for one in wrong:
        print(f"NOT AS NOTED: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
