"""The house: which package and which room may import which. The policy is the data of `tests/house.py`."""

import subprocess

import pytest

from tests import house

DRAWERS = {"utils", "util", "common", "core", "helpers", "misc"}
OLD_NAMES = {"agent", "evals", "problems", "programs", "prompts", "sandbox"}


@pytest.mark.parametrize("package", house.BELOW)
def test_a_package_imports_only_those_below_it(package):
    for name, module in house.modules().items():
        if module.package == package:
            found = {house.modules()[target].package for target in house.imports(module.path)}
            assert found <= {package, *house.BELOW[package]}, name


def test_no_module_is_a_drawer():
    assert not [name for name in house.modules() if DRAWERS & set(name.split("."))]


def test_the_table_names_every_package_that_ships():
    found = {path.parent.name for path in house.ROOT.glob("*/__init__.py")}
    assert found - {"tests", "bench"} == set(house.BELOW)


def test_the_old_top_level_names_are_imported_nowhere():
    for folder in (*house.BELOW, "tests", "bench"):
        for path in (house.ROOT / folder).rglob("*.py"):
            if not house.TEXTS & set(path.parts):
                assert not OLD_NAMES & {name.split(".")[0] for name in house.top_level_imports(path)}, path


def test_every_room_has_its_place_in_the_order():
    rooms = {(module.package, module.room) for module in house.modules().values()}
    assert rooms == {(package, room) for package, order in house.ORDER.items() for room in order}


def test_the_figures_of_the_house_are_as_noted(capsys):
    assert house.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(("count", "said"), [(3, "at most 2; mend it"), (1, "better than the 2 of OWED")])
def test_a_figure_that_is_not_as_noted_is_told(monkeypatch, count, said):
    monkeypatch.setattr(house, "OWED", {"circles": 2})
    (found,) = house.off({"circles": count}, to_read=house.MOST_TO_READ)
    assert found.startswith(f"circles: {count}, {said}")


def test_what_is_not_noted_may_not_be_found_at_all():
    assert house.off(house.OWED, to_read=0) == []
    (said,) = house.off({**house.OWED, "imports that run back up": 1}, to_read=0)
    assert "back up: 1, at most 0" in said


def test_the_reading_order_takes_an_afternoon():
    assert len(house.reading_order()) > 20
    (said,) = house.off(house.OWED, to_read=house.MOST_TO_READ + 1)
    assert "reading order" in said


@pytest.mark.skipif(not (house.ROOT / ".git").exists(), reason="not a checkout of git")
def test_git_ignores_no_source_that_ships():
    """Ruff passes over what git ignores, and a new file there would never be committed."""
    paths = "\n".join(str(module.path.relative_to(house.ROOT)) for module in house.modules().values())
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    found = subprocess.run(command, cwd=house.ROOT, input=paths, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")


def test_sources_are_parsed_in_one_place_only():
    """Elsewhere two threads could parse at once, which ends one of them in Python 3.11."""
    calls = [name for name, module in house.modules().items() if "ast.parse(" in module.path.read_text()]
    assert calls == ["kernelwright.problems.record.syntax"]
