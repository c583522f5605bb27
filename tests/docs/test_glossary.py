import re

from tests import structure
from tests.docs.pages import DOCS, ROOT

ROWS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .+ \| (.+) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
NOUNS = [(noun, re.findall(r"`([^`]+)`", places)) for names, places in ROWS for noun in re.findall(r"`(\w+)`", names)]
CLASSES = [(noun, places) for noun, places in NOUNS if noun[0].isupper()]


def test_each_is_a_class_in_one_of_the_files_that_its_row_names():
    for noun, places in CLASSES:
        files = [
            path
            for place in places
            for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        ]
        assert any(re.search(rf"^(?:class {noun}\b|{noun} =)", path.read_text(), re.MULTILINE) for path in files), noun


def test_the_folders_that_the_page_lists_are_those_of_the_packages():
    page = (DOCS / "architecture.md").read_text()
    for package in structure.BELOW:
        (row,) = re.findall(rf"^\| `{package}` \| [^|]+ \|([^|]*)\|", page, re.MULTILINE)
        rooms = {one.room.split(".")[0] for one in structure.modules().values() if one.package == package and one.room}
        assert set(re.findall(r"`(\w+)`", row)) == rooms
