"""Ideas: which apply, what is learned of them, and which model is asked."""

import random
from functools import cache

import pytest

from kernelwright.agent.steering.advice import IdeaStatistics, tally
from kernelwright.agent.steering.budget import Prices, choose_model, stalls
from kernelwright.agent.strategies.moves import untried
from kernelwright.evals.runs import default_size
from kernelwright.problems import catalog_names, load_problem
from kernelwright.prompts import Traits, applicable, idea_bank, traits_of
from kernelwright.prompts.targets import TARGETS
from tests.agent.strategies.test_refine import view_of
from tests.support.search import CONFIG, PROBLEM, Scripted, new_log, reply_with, searched

RIGHT = ("propose", None, "one simple kernel", 1.0)


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([("improve", 1, "x", 1.5)], (1, 1)),
        ([("improve", 1, "x", 0.9)], (1, 0)),
        ([("improve", 1, "x", None)], (1, 0)),
        ([("improve", 1, "x", None), ("repair", 2, "x", 1.5)], (1, 1)),
        ([("improve", 1, "x", ...)], (0, 0)),
    ],
    ids=["better", "worse", "failed", "repaired into a gain", "still open"],
)
def test_an_idea_won_where_it_beat_its_parent_and_counts_once_its_end_is_known(rows, counts):
    tried, won = tally(view_of(RIGHT, *rows), 0.02)
    assert (tried["x"], won["x"]) == counts


def test_what_won_elsewhere_is_tried_first(tmp_path):
    with new_log(tmp_path / "earlier") as log:
        answers = {1: reply_with("1.0"), 2: reply_with("0.9"), 3: reply_with("0.8"), 4: reply_with("1.5")}
        searched(log, provider=Scripted(answers), config=CONFIG.model_copy(update={"drafts": 1, "attempts": 4}))
        winner = next(event.body.ask.idea for event in log.events() if event.kind == "asked" and event.attempt == 4)
    with new_log(tmp_path / "now") as log:
        ideas = IdeaStatistics(log, CONFIG.model_copy(update={"learn_from": (str(tmp_path / "earlier"),)})).ideas(
            PROBLEM
        )
    view = view_of(RIGHT).model_copy(update={"ideas": ideas})
    assert untried(view, view.attempts[0])[0].name == winner


def test_a_problem_does_not_learn_from_itself(tmp_path):
    with new_log(tmp_path / "run") as log:
        searched(log)
        assert {idea.tried for idea in IdeaStatistics(log, CONFIG).ideas(PROBLEM)} == {0}


PRODUCT = {"operators": ("matmul",), "bound": "compute", "target": "cuda"}


def names(**traits):
    fields = {"operators": (), "bound": None, "target": "cpp"} | traits
    return {idea.name for idea in applicable(idea_bank(), Traits(**fields))}


@pytest.mark.parametrize(
    ("idea", "fitting", "other"),
    [
        ("split by residue", {"operators": ("transposed_convolution",)}, {"operators": ("softmax",)}),
        ("write past the cache", {"bound": "memory"}, {"bound": "compute"}),
        ("warp shuffles", {"target": "cuda"}, {"target": "cpp"}),
        ("split products on tensor cores", PRODUCT, PRODUCT | {"narrow": True}),
    ],
    ids=["operator", "bound", "target", "operands of 16 bits, which are not split"],
)
def test_an_idea_applies_by_what_is_known_of_the_problem(idea, fitting, other):
    assert idea in names(**fitting) and idea not in names(**other)


def test_what_is_not_known_excludes_nothing():
    assert names() >= names(operators=("softmax",), bound="memory")


def test_what_16_bits_allow_is_tried_only_there():
    more = names(**PRODUCT, narrow=True) - names(**PRODUCT)
    assert len(more) == 2 and "tensor cores fed ahead" in more


def test_names_of_ideas_are_unique():
    bank = [idea.name for idea in idea_bank()]
    assert len(set(bank)) == len(bank)


@pytest.mark.parametrize("target", ["cpp", "cuda", "triton"])
@pytest.mark.parametrize("role", ["propose", "improve"])
def test_every_target_has_ideas_for_every_role(target, role):
    assert (
        sum(role in idea.roles for idea in applicable(idea_bank(), Traits(operators=(), bound=None, target=target))) > 3
    )


@pytest.mark.parametrize(
    ("problem", "operator", "bound"),
    [
        ("softmax_rows", "softmax", "memory"),
        ("matmul_square", "matmul", "compute"),
        ("max_pool2d", "pooling", "memory"),
    ],
)
def test_traits_are_read_from_the_reference(problem, operator, bound):
    traits = traits_of(load_problem(problem), "cpp")
    assert operator in traits.operators
    assert traits.bound == bound


LADDER = CONFIG.model_copy(update={"models": ("strong", "strongest"), "stall": 2})
STUCK = ("improve", 1, "x", 0.5)


@pytest.mark.parametrize(
    ("dry", "model"), [(0, "scripted-1"), (1, "scripted-1"), (2, "strong"), (4, "strongest"), (9, "strongest")]
)
def test_a_stronger_model_is_asked_after_a_stall(dry, model):
    view = view_of(RIGHT, *[STUCK] * dry)
    assert choose_model(view, LADDER, Prices(), random.Random(0)) == model


def test_a_gain_ends_the_stall():
    assert stalls(view_of(RIGHT, *[STUCK] * 5, ("improve", 1, "y", 3.0)), LADDER) == 0


PRICES = Prices.model_validate(
    {"price": [{"model": "scripted-1", "input": 1, "output": 1}, {"model": "strong*", "input": 100, "output": 100}]}
)


def test_the_bandit_asks_mostly_the_model_with_the_best_gain_for_its_price():
    view = view_of(RIGHT, ("improve", 1, "x", 1.5), ("improve", 2, "y", 2.0))
    config = LADDER.model_copy(update={"choice": "bandit"})
    asked = [choose_model(view, config, PRICES, random.Random(seed)) for seed in range(100)]
    assert asked.count("scripted-1") > 80


def test_without_prices_the_bandit_goes_by_gain_and_tries_all():
    config = LADDER.model_copy(update={"choice": "bandit"})
    asked = {choose_model(view_of(RIGHT), config, Prices(), random.Random(seed)) for seed in range(100)}
    assert asked == {"scripted-1", "strong", "strongest"}


@cache
def traits_of_the_catalog(dtype):
    asked = [(name, target) for name in catalog_names() for target in TARGETS]
    return [traits_of(load_problem(name, default_size(name, target), dtype), target) for name, target in asked]


@pytest.mark.parametrize("idea", idea_bank(), ids=lambda idea: idea.name)
def test_every_idea_is_offered_for_some_problem_of_the_catalog(idea):
    assert any(applicable([idea], traits) for traits in traits_of_the_catalog("bfloat16" if idea.when.narrow else None))
