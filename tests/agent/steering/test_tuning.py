"""Constants that a candidate declares: found in Python and in C++, changed in one place, swept within a budget."""

import pytest

from kernelwright.agent.log.records import Knob, Screening
from kernelwright.agent.steering import AS_IT_IS, knobs_of, to_judge, to_screen, with_setting
from tests.agent.strategies.test_refine import CONFIG, view_of

SOURCE = '''\
import torch

BLOCK = 128  # elements
# tune: BLOCK in (64, 128, 256)
WARPS: tl.constexpr = 4
# tune: WARPS in (2, 4, 8)
SOURCE = """
#define UNROLL 4
// tune: UNROLL in (2, 4)
// tune: TILE in (4, 8, 16)
static constexpr int TILE = 8;
int side = TILE * UNROLL;
"""
'''


def test_constants_are_found_however_they_are_defined():
    found = [(knob.name, knob.value) for knob in knobs_of(SOURCE)]
    assert found == [("BLOCK", "128"), ("WARPS", "4"), ("UNROLL", "4"), ("TILE", "8")]


@pytest.mark.parametrize(
    "source",
    [
        "# tune: BLOCK in (64, 128)\n",
        "BLOCK = 1\nBLOCK = 1\n# tune: BLOCK in (1, 2)\n",
        "BLOCK = 32\n# tune: BLOCK in (64, 128)\n",
        "BLOCK = 64\n# tune: BLOCK in (64, f(x))\n",
        "BLOCK == 64\n# tune: BLOCK in (64, 128)\n",
    ],
    ids=["no definition", "two definitions", "another value", "no plain value", "a comparison"],
)
def test_a_declaration_that_is_not_clear_counts_for_nothing(source):
    assert knobs_of(source) == ()


@pytest.mark.parametrize(
    ("setting", "before", "after"),
    [
        ("BLOCK = 256", "BLOCK = 128  # elements", "BLOCK = 256  # elements"),
        ("WARPS = 8", "WARPS: tl.constexpr = 4", "WARPS: tl.constexpr = 8"),
        ("UNROLL = 2", "#define UNROLL 4", "#define UNROLL 2"),
        ("TILE = 16", "constexpr int TILE = 8;", "constexpr int TILE = 16;"),
    ],
)
def test_a_setting_changes_the_definition_and_nothing_else(setting, before, after):
    assert with_setting(SOURCE, setting) == SOURCE.replace(before, after)


def test_several_constants_are_set_at_once_or_none():
    changed = with_setting(SOURCE, "BLOCK = 64, TILE = 4")
    assert ("BLOCK = 64" in changed, "TILE = 4;" in changed) == (True, True)
    assert with_setting(SOURCE, AS_IT_IS) == SOURCE


KNOBS = (Knob(name="A", value="1", values=("1", "2", "3")), Knob(name="B", value="x", values=("x", "y")))


def tunable(*screenings):
    view = view_of(("propose", None, "a", 1.5))
    only = view.attempts[0]
    found = only.extraction.model_copy(update={"knobs": KNOBS})
    shown = tuple(Screening(setting=setting, candidate_ms=ms) for setting, ms in screenings)
    return view.model_copy(update={"attempts": (only.model_copy(update={"extraction": found, "screenings": shown}),)})


def test_every_other_value_is_looked_at_once_beside_the_candidate_itself_within_the_budget():
    attempt, settings = to_screen(tunable(), CONFIG)
    assert (attempt.number, settings) == (1, (AS_IT_IS, "A = 2", "A = 3", "B = y"))
    assert len(to_screen(tunable(), CONFIG.model_copy(update={"tune": 1}))[1]) == 3
    assert to_screen(tunable((AS_IT_IS, 1.0)), CONFIG) is None


@pytest.mark.parametrize(
    ("screened", "tune", "judged"),
    [
        ((1.0, 0.9, 1.1, 0.8), 8, ["B = y, A = 2", "B = y", "A = 2"]),
        ((1.0, 0.9, 1.1, 0.8), 2, ["B = y, A = 2", "B = y"]),
        ((1.0, 0.99, None, 1.5), 8, []),
    ],
    ids=["what helps is judged together first", "within the budget", "what does not help is not"],
)
def test_what_was_looked_at_is_judged_where_it_helps(screened, tune, judged):
    screenings = zip((AS_IT_IS, "A = 2", "A = 3", "B = y"), screened, strict=True)
    found = to_judge(tunable(*screenings), CONFIG.model_copy(update={"tune": tune}))
    assert [setting for _, setting in found] == judged
