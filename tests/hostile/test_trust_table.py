"""docs/trust.md says what the tests prove, line by line."""

import re

from tests.hostile.attacks import ATTACKS
from tests.hostile.snooping import lines
from tests.hostile.surroundings import CHECKOUT
from tests.hostile.trust import SETTINGS, UNTRIED, WORKS

TEXT = (CHECKOUT / "docs" / "trust.md").read_text()
OFF = ("off, user",)


def listed(introduction):
    """The entries below a paragraph, by name: `- what is tried: `name``."""
    after = TEXT.partition(f"\n{introduction}\n\n")[2].partition("\n\n")[0]
    return {name: text for text, name in re.findall(r"^- (.+) \(`(\w+)`\)$", after, re.MULTILINE)}


def test_every_attack_has_its_line_under_the_stage_at_which_it_fails():
    for stage in ("run", "build"):
        expected = {name: one.line for name, one in ATTACKS.items() if name != "snooping" and one.stage == stage}
        assert listed(f"Fails at {stage}:") == expected
    assert {one.stage for one in ATTACKS.values()} == {"run", "build"}


def test_every_attempt_has_its_line_under_the_settings_that_refuse_it():
    only_off, everywhere, alone = {}, {}, {}
    for name, line in lines().items():
        works = WORKS.get(name, ())
        assert not {"namespaces, root", "namespaces, user"} & set(works) and set(works) <= set(SETTINGS)
        if works == OFF or UNTRIED.get(name) in OFF:
            only_off[name] = line
        else:
            (alone if works else everywhere)[name] = line
    assert listed("Refused with any jail, possible with `--jail off`:") == only_off
    assert listed("Refused everywhere, also with `--jail off`:") == everywhere
    assert listed("Refused with namespaces; without them possible:") == {
        name: line + (" (as a user)" if "alone, root" not in WORKS[name] else "") for name, line in alone.items()
    }
    assert [f"`{name}`" in TEXT for name in UNTRIED] == [True] * len(UNTRIED)


def test_every_test_that_the_text_names_is_there():
    named = {word for line in TEXT.splitlines() for word in line.split("`") if word.startswith("test_")}
    files = {path.name: path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py")}
    for name in named:
        assert name in files if name.endswith(".py") else any(f"def {name}(" in text for text in files.values()), name
    assert named
