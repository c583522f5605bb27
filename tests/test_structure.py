"""Importing the search is quick: what is heavy is loaded when it is used."""

import importlib
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bench
from kernelwright.problems.problem import LibraryMissing
from tests import structure

DRAWERS = {"utils", "util", "common", "core", "helpers", "misc"}
OLD_NAMES = {"agent", "evals", "problems", "programs", "prompts", "sandbox"}
IMPORTS = re.compile(rf"^\s*(from|import)\b.*(?<![.\w])({'|'.join(sorted(OLD_NAMES))})\b", re.MULTILINE)
"""What may import one of them; a file without that needs no parsing."""


def test_no_module_is_a_drawer():
    assert not [name for name in structure.modules() if DRAWERS & set(name.split("."))]


def test_the_table_names_every_package_that_ships():
    found = {path.parent.name for path in structure.ROOT.glob("*/__init__.py")}
    assert found - {"tests", "bench"} == set(structure.BELOW) - set(structure.FOLDERS)


def test_the_old_top_level_names_are_imported_nowhere():
    for folder in (*structure.BELOW, "tests", "bench"):
        for path in (structure.ROOT / folder).rglob("*.py"):
            if not structure.TEXTS & set(path.parts) and IMPORTS.search(path.read_text(encoding="utf-8")):
                assert not OLD_NAMES & {name.split(".")[0] for name in structure.top_level_imports(path)}, path


def test_imports_cycles_and_sizes_are_as_they_should_be(capsys):
    assert structure.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(("size", "is_off"), [(1001, True), (1000, False), (991, False), (989, True)])
def test_a_size_lies_between_its_budget_and_one_percent_below(size, is_off):
    assert bool(structure.off_budget({"shipped_lines": size}, {"shipped_lines": 1000})) == is_off


def test_modules_that_import_each_other_are_a_cycle():
    graph = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}
    assert sorted(map(sorted, structure._strong(graph))) == [["a", "b", "c"], ["d"]]


@pytest.mark.skipif(not (structure.ROOT / ".git").exists(), reason="not a checkout of git")
def test_git_ignores_no_source_that_ships():
    """Ruff passes over what git ignores, and a new file there would never be committed."""
    paths = "\n".join(str(module.path.relative_to(structure.ROOT)) for module in structure.modules().values())
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    found = subprocess.run(command, cwd=structure.ROOT, input=paths, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")


def test_sources_are_parsed_in_one_place_only():
    """Elsewhere two threads could parse at once, which ends one of them in Python 3.11."""
    calls = [name for name, module in structure.modules().items() if "ast.parse(" in module.path.read_text()]
    assert calls == ["kernelwright.problems.source"]


MODULES = (
    "kernelwright.agent.engine, kernelwright.agent.log.best, "
    "kernelwright.agent.providers.server, kernelwright.agent.providers.recorded, "
    "kernelwright.agent.strategies"
)


def test_importing_the_search_loads_neither_torch_nor_openai():
    program = f"import sys, {MODULES}; print(sorted({{'torch', 'openai'}} & sys.modules.keys()))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_module_of_the_benches_can_be_imported():
    root = Path(bench.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name != "__main__.py":
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


@pytest.mark.parametrize(
    "name, missing, said",
    [
        ("openenv_environment", ("fastapi",), r"fastapi.*'kernelwright\[openenv\]'"),
        ("verifiers_taskset", ("verifiers", "verifiers.v1"), r"verifiers.*'verifiers>=0\.4'"),
    ],
)
def test_a_hook_without_its_library_names_what_to_install(monkeypatch, name, missing, said):
    module = f"kernelwright.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for one in missing:
        monkeypatch.setitem(sys.modules, one, None)  # as if it were not installed, also where it is
    with pytest.raises(LibraryMissing, match=said):
        import_module(module)
