"""docs/trust.md says what the tests prove, line by line."""

from tests.hostile.attacks import ATTACKS
from tests.hostile.snooping import lines
from tests.hostile.surroundings import CHECKOUT
from tests.hostile.trust import SETTINGS, UNTRIED, WORKS

TEXT = (CHECKOUT / "docs" / "trust.md").read_text()


def rows(first_heading):
    """The cells of the table whose first column has this heading, without the heading."""
    found, within = [], False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {first_heading} |"):
            within = True
        elif not line.startswith("|"):
            within = False
        elif within and not line.startswith("|--"):
            found.append(cells)
    return found


def cell(name, setting):
    if UNTRIED.get(name) == setting:
        return "not tried"
    return "**works**" if setting in WORKS.get(name, ()) else "refused"


def test_every_attack_has_its_line_with_the_stage_at_which_it_fails():
    expected = [[attack.line, attack.stage, f"`{name}`"] for name, attack in ATTACKS.items() if name != "snooping"]
    assert rows("attack") == expected


def test_every_attempt_has_its_line_with_what_each_setting_does_about_it():
    expected = [[line, *(cell(name, setting) for setting in SETTINGS), f"`{name}`"] for name, line in lines().items()]
    assert rows("attempt") == expected


def test_every_test_that_the_text_names_is_there():
    named = {word for line in TEXT.splitlines() for word in line.split("`") if word.startswith("test_")}
    files = {path.name: path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py")}
    for name in named:
        assert name in files if name.endswith(".py") else any(f"def {name}(" in text for text in files.values()), name
    assert named
