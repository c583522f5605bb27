import re

import pytest

from tests import structure

PAGES = {package: structure.ROOT / package / "README.md" for package in ("sandbox", "kernelwright_child")}


def rooms_named(package):
    """The first column of the page's table; a dot is the package's own folder."""
    cells = re.findall(r"^\| `([\w/]+|\.)` \|", PAGES[package].read_text(), re.MULTILINE)
    return [cell.strip(".").replace("/", ".") for cell in cells]


@pytest.mark.parametrize("package", PAGES)
def test_a_package_s_page_names_each_of_its_folders(package):
    found = {module.room for module in structure.modules().values() if module.package == package}
    assert {room for room in rooms_named(package) if room} == {room for room in found if room}


@pytest.mark.parametrize("package", PAGES)
def test_the_files_that_a_package_s_page_names_are_there(package):
    folders = {structure.ROOT / package, structure.ROOT / "kernelwright_child"}
    for name in re.findall(r"`([\w/]+\.(?:py|cpp))`", PAGES[package].read_text()):
        assert (structure.ROOT / name).is_file() or any(any(folder.rglob(name)) for folder in folders), name


def test_the_page_on_extending_names_every_file_that_a_target_s_name_is_in():
    section = (structure.ROOT / "docs" / "extending.md").read_text().partition("## A target")[2].partition("\n## ")[0]
    data = {"catalog", "examples", "cribs"}
    files = [
        path.relative_to(structure.ROOT)
        for package in structure.BELOW
        for path in (structure.ROOT / package).rglob("*.py")
    ]
    found = {str(path) for path in files if not data & set(path.parts) and re.search(r"\bhelion\b", read(path))}
    assert len(found) > 8 and found <= set(re.findall(r"`([\w/]+\.py)`", section))


def read(path):
    return (structure.ROOT / path).read_text(encoding="utf-8")
