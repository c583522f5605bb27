"""The pages of the packages: each names its rooms in the order in which they import each other, and files that are."""

import re

import pytest

from tests import house

PAGES = {package: house.ROOT / package / "README.md" for package in ("sandbox", "kernelwright_child")}


def rooms_named(package):
    """The first column of the page's table of rooms; a dot is the package's own folder."""
    cells = re.findall(r"^\| `([\w/.]+)` \|", PAGES[package].read_text(), re.MULTILINE)
    return [cell.strip(".").replace("/", ".") for cell in cells]


@pytest.mark.parametrize("package", PAGES)
def test_a_package_s_page_has_its_rooms_in_reading_order(package):
    own_folder = [""] if package == "kernelwright_child" else []
    assert rooms_named(package) == [room for room in house.ORDER[package] if room or own_folder]


@pytest.mark.parametrize("package", PAGES)
def test_the_files_that_a_package_s_page_names_are_there(package):
    folders = {house.ROOT / package, house.ROOT / "kernelwright_child"}
    for name in re.findall(r"`([\w/]+\.(?:py|cpp))`", PAGES[package].read_text()):
        assert (house.ROOT / name).is_file() or any(any(folder.rglob(name)) for folder in folders), name


def test_the_page_on_extending_names_every_file_that_a_target_s_name_is_in():
    section = (house.ROOT / "docs" / "extending.md").read_text().partition("## A target")[2].partition("\n## ")[0]
    data = {"catalog", "examples", "cribs"}
    files = [path.relative_to(house.ROOT) for package in house.ORDER for path in (house.ROOT / package).rglob("*.py")]
    found = {str(path) for path in files if not data & set(path.parts) and re.search(r"\bhelion\b", read(path))}
    assert len(found) > 8 and found <= set(re.findall(r"`([\w/]+\.py)`", section))


def read(path):
    return (house.ROOT / path).read_text(encoding="utf-8")
