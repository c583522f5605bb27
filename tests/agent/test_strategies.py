"""What all strategies that ship have in common, what sets each apart, and how others are found."""

import ast
import random
from pathlib import Path

import pytest

import kernelwright.agent.strategies
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log.view import View
from kernelwright.agent.replies import NotExtracted
from kernelwright.agent.strategies import GROUP, SHIPPED, Stop, StrategyError, load_strategy
from tests.support.search import attempt, view_of

CONFIG = SearchConfig(model="m", attempts=40, drafts=2, repairs=2, patience=5)
RIGHT, FAST = ("propose", None, "one simple kernel", 1.0), ("propose", None, "work in blocks", 3.0)
WRONG = ("propose", None, "fuse all steps", None)
VIEWS = {
    "nothing": view_of(),
    "a right draft": view_of(RIGHT),
    "drafts": view_of(RIGHT, FAST, WRONG),
    "only failures": view_of(WRONG, WRONG, WRONG),
    "long": view_of(RIGHT, FAST, WRONG, *[("improve", 2, f"i{n}", 3.0 + n / 10) for n in range(12)]),
    "something pending": view_of(RIGHT, FAST, WRONG, ("improve", 2, "i", ...)),
}


def proposal(name, view, slots=1, seed=0, config=CONFIG):
    return load_strategy(name, config).propose(view, slots, random.Random(seed))


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("slots", [1, 4])
def test_each_of_no_more_steps_than_slots_goes_on_from_a_finished_attempt_in_the_role_that_fits(name, view, slots):
    steps = proposal(name, view, slots, seed=3)
    assert steps == proposal(name, view, slots, seed=3), "the same view and seed give the same steps"
    assert steps != [] or view.pending, "it waits only for what is pending"
    if isinstance(steps, Stop):
        return
    assert len(steps) <= slots
    for step in steps:
        parent = None if step.parent is None else view.attempt(step.parent)
        assert parent is None or parent.finished
        assert step.role == ("propose" if parent is None else "improve" if parent.passed else "repair")


def test_strategies_read_no_clock_and_do_nothing():
    tree = ast.parse(Path(kernelwright.agent.strategies.__file__).read_text())
    nodes = list(ast.walk(tree))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & {"asyncio", "datetime", "os", "socket", "subprocess", "time"}


def test_best_of_always_starts_from_the_reference():
    assert {step.role for step in proposal("best_of", VIEWS["long"], 4)} == {"propose"}


def test_race_stops_at_the_first_right_candidate():
    assert proposal("race", VIEWS["a right draft"]) == Stop(reason="attempt 1 is right")


def test_pool_prefers_fast_parents():
    parents = [proposal("pool", view_of(RIGHT, FAST), seed=seed)[0].parent for seed in range(50)]
    assert parents.count(2) > 40


def test_beam_gives_each_kept_attempt_its_share():
    rows = [RIGHT, FAST, ("propose", None, "c", 2.0)]
    for _ in range(6):
        step = proposal("beam", view_of(*rows))[0]
        rows.append(("improve", step.parent, step.idea, 0.5))
    assert sorted(row[1] for row in rows[3:]) == [1, 1, 2, 2, 3, 3]


def test_islands_take_turns():
    rows = [RIGHT, FAST, ("propose", None, "c", 2.0)]
    parents = [step.parent for step in proposal("islands", view_of(*rows), slots=3)]
    assert sorted(parents) == [1, 2, 3]


def test_elites_do_not_only_improve_the_best():
    parents = {
        proposal("elites", VIEWS["drafts"], seed=seed, config=CONFIG.model_copy(update={"repairs": 0}))[0].parent
        for seed in range(40)
    }
    assert parents == {1, 2}


def test_tree_comes_back_to_a_design_that_was_tried_less():
    rows = [RIGHT, ("propose", None, "work in blocks", 1.05), RIGHT]
    rows += [("improve", 2, f"i{n}", 1.0) for n in range(12)]
    assert proposal("tree", view_of(*rows))[0].parent != 2


OWN = """\
from kernelwright.agent.strategies import Step, Stop


def twice(view, slots, rng):
    if len(view.attempts) >= 2:
        return Stop(reason="two are enough")
    return [Step("propose", None, "my own")]
"""


def test_a_function_in_a_file_is_a_strategy(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path / 'mine.py'}:twice"
    assert proposal(name, view_of())[0].idea == "my own"
    assert proposal(name, view_of(RIGHT, RIGHT)) == Stop(reason="two are enough")


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (None, "f", "no strategy file"),
        ("import nothing_of_that_name", "f", "cannot be loaded"),
        ("f = 3", "f", "defines no function 'f'"),
        ("", "g", "defines no function 'g'"),
    ],
)
def test_a_file_that_gives_no_strategy_is_told(tmp_path, text, function, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(StrategyError, match=message):
        load_strategy(f"{tmp_path / 'mine.py'}:{function}", CONFIG)


def test_a_strategy_of_an_installed_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "other-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nother = kernelwright.agent.strategies:Race\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert proposal("other", VIEWS["a right draft"]) == Stop(reason="attempt 1 is right")


def test_repairs_go_on_longer_where_they_work():
    failing = [WRONG, ("repair", 1, "a", None), ("repair", 2, "a", None)]
    working = [row for n in range(6) for row in (WRONG, ("repair", 2 * n + 1, "a", 1.0))]
    limits = [limit_at(view_of(*rows)) for rows in (failing, working)]
    assert limits[0] < CONFIG.repairs < limits[1]


def limit_at(view: View) -> int:
    from kernelwright.agent.strategies import repair_limit

    return repair_limit(view, CONFIG)


def test_a_failure_far_behind_the_best_is_not_repaired():
    view = view_of(RIGHT, FAST, ("improve", 1, "x", None))
    assert [step.role for step in proposal("refine", view)] == ["improve"]


def test_every_few_steps_refine_goes_on_with_another_family():
    rows = [RIGHT, FAST, *[("improve", 2, f"i{n}", 2.5) for n in range(3)]]
    assert proposal("refine", view_of(*rows))[0].parent == 1


def test_refine_drafts_another_design_after_a_dry_spell():
    rows = [RIGHT, FAST, *[("improve", 2, f"i{n}", 2.5) for n in range(6)]]
    config = CONFIG.model_copy(update={"patience": 20})
    assert proposal("refine", view_of(*rows), config=config)[0].role == "propose"


REFINE = SearchConfig(model="m", attempts=20, drafts=2, repairs=2, patience=3, runner_up=0)


def refined(view, slots=1, config=REFINE, seed=0):
    return load_strategy("refine", config).propose(view, slots, random.Random(seed))


def steps(view, slots=1, config=REFINE):
    return [(step.role, step.parent) for step in refined(view, slots, config)]


BAD = ("propose", None, "a", None)
GOOD = ("propose", None, "b", 1.5)
WAITING = ("propose", None, "b", ...)


NO_REPAIRS = REFINE.model_copy(update={"repairs": 0})


@pytest.mark.parametrize(
    ("rows", "config", "step"),
    [
        ([], REFINE, ("propose", None)),
        ([BAD], REFINE, ("propose", None)),
        ([BAD, GOOD], REFINE, ("repair", 1)),
        ([BAD, GOOD, ("repair", 1, "a", None)], REFINE, ("repair", 3)),
        ([BAD, GOOD, ("repair", 1, "a", None), ("repair", 3, "a", None)], REFINE, ("improve", 2)),
        ([BAD, GOOD], NO_REPAIRS, ("improve", 2)),
        ([BAD, GOOD, ("repair", 1, "a", ...)], REFINE, ("improve", 2)),
        ([GOOD, GOOD, ("improve", 1, "c", None)], REFINE, ("repair", 3)),
        ([("propose", None, "a", 3.0), GOOD], REFINE, ("improve", 1)),
        ([BAD, BAD], NO_REPAIRS, ("propose", None)),
    ],
    ids=[
        "it begins with a draft",
        "the second draft comes before the repair of the first",
        "a failed draft is repaired",
        "a repair that failed is repaired in turn",
        "after enough repairs in a row the best is improved",
        "without repairs the best is improved at once",
        "what is being repaired is not repaired twice",
        "an improvement that failed is repaired",
        "the best is improved and not the latest",
        "when nothing passed and nothing can be repaired it starts afresh",
    ],
)
def test_the_next_step_follows_from_the_view(rows, config, step):
    assert steps(view_of(*rows), config=config) == [step]


@pytest.mark.parametrize(("rows", "count"), [([], 2), ([GOOD, GOOD], 3)], ids=["drafts", "improvements"])
def test_steps_in_several_slots_have_different_ideas(rows, count):
    found = refined(view_of(*rows), slots=3)
    assert len(found) == len({step.idea for step in found}) == count


def test_a_repair_keeps_the_idea_of_what_it_repairs():
    assert refined(view_of(BAD, GOOD))[0].idea == "a"


def test_a_reply_without_a_candidate_is_repaired_too():
    silent = attempt(1, "propose", None, "a", ...).model_copy(
        update={"extraction": NotExtracted(kind="no_code", detail="There is none.")}
    )
    view = View(problem="p", attempts=(silent, attempt(2, *GOOD)))
    assert steps(view) == [("repair", 1)]


def test_each_improvement_of_one_attempt_has_another_idea():
    first = refined(view_of(GOOD, GOOD))[0].idea
    second = refined(view_of(GOOD, GOOD, ("improve", 1, first, 1.4)))[0].idea
    assert first != second


def test_it_waits_for_a_draft_before_it_starts_afresh():
    assert refined(view_of(BAD, WAITING), config=NO_REPAIRS) == []


@pytest.mark.parametrize("speedup", [1.2, 1.5, 1.5 * 1.019], ids=["slower", "equal", "within two percent"])
def test_it_stops_after_improvements_without_gain(speedup):
    rows = [GOOD, GOOD] + [("improve", 1, f"i{n}", speedup) for n in range(3)]
    stop = refined(view_of(*rows))
    assert isinstance(stop, Stop) and "3 improvements" in stop.reason


def test_a_gain_and_small_gains_that_add_up_to_one_renew_its_patience():
    rows = [GOOD, GOOD] + [("improve", 1, f"i{n}", 1.2) for n in range(2)] + [("improve", 1, "x", 1.6)]
    assert steps(view_of(*rows)) == [("improve", 5)]
    rows = [GOOD, GOOD] + [("improve", 1, f"i{n}", 1.5 * 1.009 ** (n + 1)) for n in range(3)]
    assert steps(view_of(*rows)) == [("improve", 5)]


def test_an_unknown_strategy_is_told_with_those_that_there_are():
    with pytest.raises(StrategyError, match=r"'refyne'.* refine"):
        load_strategy("refyne", REFINE)
