"""The house: which package and which room may import which. The policy is the data of `tests/house.py`."""

import pytest

from tests import house

DRAWERS = {"utils", "util", "common", "core", "helpers", "misc"}
OLD_NAMES = {"agent", "evals", "problems", "prompts", "sandbox"}


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
