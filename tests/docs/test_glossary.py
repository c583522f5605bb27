"""The glossary of the architecture page: few nouns, each where the page says."""

import re

from tests import house
from tests.docs.pages import DOCS, ROOT

MOST_NOUNS = 40
ROWS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .+ \| (.+) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
NOUNS = [(noun, re.findall(r"`([^`]+)`", places)) for names, places in ROWS for noun in re.findall(r"`(\w+)`", names)]
CLASSES = [(noun, places) for noun, places in NOUNS if noun[0].isupper()]


def test_there_are_few_nouns():
    assert 20 < len(CLASSES) <= MOST_NOUNS


def test_each_is_a_class_in_one_of_the_files_that_its_row_names():
    for noun, places in CLASSES:
        files = [
            path
            for place in places
            for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        ]
        assert any(re.search(rf"^(?:class {noun}\b|{noun} =)", path.read_text(), re.MULTILINE) for path in files), noun


def test_the_rooms_that_the_page_lists_are_those_of_the_house():
    page = (DOCS / "architecture.md").read_text()
    for package, order in house.ORDER.items():
        (row,) = re.findall(rf"^\| `{package}` \| [^|]+ \|([^|]*)\|", page, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(dict.fromkeys(room.split(".")[0] for room in order if room))
