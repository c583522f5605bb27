import random

import pytest

from kernelwright.agent.config import SearchConfig
from kernelwright.agent.log.records import Ask, Attempt, FoundCandidate, PromptOutline
from kernelwright.agent.log.view import View
from kernelwright.agent.replies import NotExtracted
from kernelwright.agent.strategies import Stop, StrategyError, load_strategy
from tests.support.search import failed, passed

CONFIG = SearchConfig(model="m", attempts=20, drafts=2, repairs=2, patience=3, runner_up=0)
PROMPT = PromptOutline(role="propose", target="cpp", digest="", stable_digest="", sections=())


def view_of(*rows):
    """A view from rows of role, parent, idea and speedup, or None for a failure, or ... for one that is pending."""
    attempts = [attempt(number, *row) for number, row in enumerate(rows, start=1)]
    return View(problem="p", attempts=tuple(attempts))


def attempt(number, role, parent, idea, end):
    ask = Ask(attempt=number, problem="p", role=role, target="cpp", parent=parent, idea=idea, directive="", model="m")
    open_one = Attempt(ask=ask, prompt=PROMPT, request_digest="", temperature=None, max_tokens=None, sample=0)
    if end is ...:
        return open_one
    found = {"extraction": FoundCandidate(digest=str(number), language="cpp", how="")}
    return open_one.model_copy(update=found | {"verdict": failed() if end is None else passed(end)})


def proposal(view, slots=1, config=CONFIG, seed=0):
    return load_strategy("refine", config).propose(view, slots, random.Random(seed))


def steps(view, slots=1, config=CONFIG):
    return [(step.role, step.parent) for step in proposal(view, slots, config)]


WRONG = ("propose", None, "a", None)
RIGHT = ("propose", None, "b", 1.5)
WAITING = ("propose", None, "b", ...)


NO_REPAIRS = CONFIG.model_copy(update={"repairs": 0})


@pytest.mark.parametrize(
    ("rows", "config", "step"),
    [
        ([], CONFIG, ("propose", None)),
        ([WRONG], CONFIG, ("propose", None)),
        ([WRONG, RIGHT], CONFIG, ("repair", 1)),
        ([WRONG, RIGHT, ("repair", 1, "a", None)], CONFIG, ("repair", 3)),
        ([WRONG, RIGHT, ("repair", 1, "a", None), ("repair", 3, "a", None)], CONFIG, ("improve", 2)),
        ([WRONG, RIGHT], NO_REPAIRS, ("improve", 2)),
        ([WRONG, RIGHT, ("repair", 1, "a", ...)], CONFIG, ("improve", 2)),
        ([RIGHT, RIGHT, ("improve", 1, "c", None)], CONFIG, ("repair", 3)),
        ([("propose", None, "a", 3.0), RIGHT], CONFIG, ("improve", 1)),
        ([WRONG, WRONG], NO_REPAIRS, ("propose", None)),
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


@pytest.mark.parametrize(("rows", "count"), [([], 2), ([RIGHT, RIGHT], 3)], ids=["drafts", "improvements"])
def test_steps_in_several_slots_have_different_ideas(rows, count):
    found = proposal(view_of(*rows), slots=3)
    assert len(found) == len({step.idea for step in found}) == count


def test_a_repair_keeps_the_idea_of_what_it_repairs():
    assert proposal(view_of(WRONG, RIGHT))[0].idea == "a"


def test_a_reply_without_a_candidate_is_repaired_too():
    silent = attempt(1, "propose", None, "a", ...).model_copy(
        update={"extraction": NotExtracted(kind="no_code", detail="There is none.")}
    )
    view = View(problem="p", attempts=(silent, attempt(2, *RIGHT)))
    assert steps(view) == [("repair", 1)]


def test_each_improvement_of_one_attempt_has_another_idea():
    first = proposal(view_of(RIGHT, RIGHT))[0].idea
    second = proposal(view_of(RIGHT, RIGHT, ("improve", 1, first, 1.4)))[0].idea
    assert first != second


def test_it_waits_for_a_draft_before_it_starts_afresh():
    assert proposal(view_of(WRONG, WAITING), config=NO_REPAIRS) == []


@pytest.mark.parametrize("speedup", [1.2, 1.5, 1.5 * 1.019], ids=["slower", "equal", "within two percent"])
def test_it_stops_after_improvements_without_gain(speedup):
    rows = [RIGHT, RIGHT] + [("improve", 1, f"i{n}", speedup) for n in range(3)]
    stop = proposal(view_of(*rows))
    assert isinstance(stop, Stop) and "3 improvements" in stop.reason


def test_a_gain_and_small_gains_that_add_up_to_one_renew_its_patience():
    rows = [RIGHT, RIGHT] + [("improve", 1, f"i{n}", 1.2) for n in range(2)] + [("improve", 1, "x", 1.6)]
    assert steps(view_of(*rows)) == [("improve", 5)]
    rows = [RIGHT, RIGHT] + [("improve", 1, f"i{n}", 1.5 * 1.009 ** (n + 1)) for n in range(3)]
    assert steps(view_of(*rows)) == [("improve", 5)]


def test_an_unknown_strategy_is_told_with_those_that_there_are():
    with pytest.raises(StrategyError, match=r"'refyne'.* refine"):
        load_strategy("refyne", CONFIG)
