"""Imports point down. The policy is the table; the test reads the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "problems": set(),
    "prompts": {"problems"},
    "sandbox": {"problems"},
    "agent": {"problems", "prompts", "sandbox"},
    "evals": {"problems", "prompts", "sandbox", "agent"},
    "kernelwright": {"problems", "prompts", "sandbox", "agent", "evals"},
}
DRAWERS = {"utils", "util", "common", "core", "helpers", "misc"}


def modules(package):
    shipped_texts = {"catalog", "examples"}
    return [path for path in (ROOT / package).rglob("*.py") if not shipped_texts & set(path.relative_to(ROOT).parts)]


def imported_packages(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_below_it(package):
    allowed = MAY_IMPORT[package] | {package}
    for path in modules(package):
        wrong = {name for name in imported_packages(path) if name in MAY_IMPORT and name not in allowed}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_module_is_a_drawer(package):
    assert not [path for path in modules(package) if path.stem in DRAWERS or path.parent.name in DRAWERS]


def test_the_table_names_every_package_that_ships():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"} == set(MAY_IMPORT)
