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


def test_a_language_is_named_in_its_own_file_alone():
    data = {"catalog", "examples", "snippets"}
    files = [path for package in structure.BELOW for path in (structure.ROOT / package).rglob("*.py")]
    shipped = [path.relative_to(structure.ROOT) for path in files if not data & set(path.parts)]
    found = [str(path) for path in shipped if re.search("helion", read(path), re.IGNORECASE)]
    assert found == ["problems/languages/helion.py"]


def read(path):
    return (structure.ROOT / path).read_text(encoding="utf-8")
