"""What a search may spend: limits are kept, and what is unknown is never taken for nothing."""

import random
import re
from functools import cache

import pytest

from kernelwright.agent.config import Budget, SearchConfig
from kernelwright.agent.log.records import Knob, ReplyFacts, Screening, Usage
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.scheduler import account
from kernelwright.agent.steering import (
    AS_IT_IS,
    IdeaStatistics,
    PriceError,
    Prices,
    choose_model,
    exceeded,
    knobs_of,
    load_prices,
    near_floor,
    spent,
    stalls,
    tally,
    times_the_roofline,
    to_judge,
    to_screen,
    with_setting,
)
from kernelwright.agent.strategies import improve
from kernelwright.evals.runs import default_size
from kernelwright.problems import catalog_names, load_problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts import Traits, applicable, idea_bank, traits_of
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork
from kernelwright.sandbox.verdict.verdicts import Failed
from tests.support.runs import doubted, writing
from tests.support.search import CONFIG, PROBLEM, ReadingEvaluator, Scripted, new_log, reply_with, searched, view_of


class Counted(Scripted):
    usage = Usage(input_tokens=1000, cached_tokens=400, output_tokens=500)

    async def complete(self, request, ask, prompt):
        return (await super().complete(request, ask, prompt)).model_copy(update={"usage": self.usage})


def with_budget(**limits):
    return CONFIG.model_copy(update={"budget": Budget(**limits)})


@pytest.mark.parametrize(
    ("limits", "provider", "said", "count"),
    [
        ({"tokens": 4000}, Counted, "budget of 4000 tokens", 3),
        ({"tokens": 10**9}, Scripted, "tokens.*unknown", 1),
        ({"usd": 3.0}, Counted, "unknown", 1),
        ({"wall_s": 1e-6}, Scripted, "budget of 1e-06 s", 1),
        ({}, Scripted, "budget of 7 attempts", 7),
    ],
    ids=["tokens", "tokens that the provider does not tell", "usd without a price", "seconds", "attempts"],
)
def test_what_is_limited_ends_at_its_limit_and_what_is_not_known_is_refused(log, limits, provider, said, count):
    view = searched(log, provider=provider(), config=with_budget(**limits))
    assert re.search(said, view.stopped) and view.spent == count


def test_usd_are_limited_by_the_price_table(log, tmp_path):
    table = tmp_path / "prices.toml"
    table.write_text('[[price]]\nmodel = "scripted-*"\ninput = 1000.0\ncached = 500.0\noutput = 2000.0\n')
    config = with_budget(usd=3.0).model_copy(update={"prices": str(table)})
    view = searched(log, provider=Counted(), config=config)
    assert "budget of 3 USD" in view.stopped and view.spent == 2


def test_the_time_between_two_processes_does_not_count(log):
    searched(log, config=CONFIG.model_copy(update={"attempts": 3}))
    before = fold(PROBLEM.name, log.events()).wall_s
    after = searched(log).wall_s
    events = list(log.events(PROBLEM.name))
    times = [event.time for event in events]
    resumed = next(at for at, event in enumerate(events) if event.kind == "resumed")
    gap = times[resumed] - times[resumed - 1]
    assert after == pytest.approx((times[-1] - times[0] - gap).total_seconds())
    assert after > before


class Floored(ReadingEvaluator):
    """Every right candidate takes 1 ms; the roofline is the one that it is given."""

    def __init__(self, floor_ms):
        super().__init__()
        work = NecessaryWork(read_bytes=0, written_bytes=0, flops={"float32": 1})
        self.floor = Floor(work=work, memory_ms=0.0, direct_ms=floor_ms, least_ms=0.0)

    async def evaluate(self, problem, candidate, *, fresh=False, best_speedup=None):
        verdict = await super().evaluate(problem, candidate, fresh=fresh, best_speedup=best_speedup)
        if isinstance(verdict, Failed):
            return verdict
        measurement = verdict.measurement.model_copy(update={"floor": self.floor})
        return verdict.model_copy(update={"measurement": measurement})


@pytest.mark.parametrize("floor_ms", [0.95, 1.05])
def test_near_the_floor_there_is_no_room(log, floor_ms):
    view = searched(log, evaluator=Floored(floor_ms))
    assert "1 ms" in view.stopped and f"roofline is {floor_ms} ms" in view.stopped and view.spent == 2
    assert account(PROBLEM, view, CONFIG).expected_gain < 0.1


@pytest.mark.parametrize("floor_ms", [0.5, 2.0])
def test_a_floor_far_below_the_best_or_far_above_it_ends_no_search(log, floor_ms):
    view = searched(log, evaluator=Floored(floor_ms))
    assert "budget of 7 attempts" in view.stopped and view.spent == 7
    assert account(PROBLEM, view, CONFIG).expected_gain > 0.1


@pytest.mark.parametrize(("copy_ms", "times"), [(0.95, 1.05), (0.5, 2.0), (1.5, 5.0), (None, 5.0)])
def test_on_a_gpu_a_copy_of_the_bytes_bounds_what_is_left(tmp_path, copy_ms, times):
    work = NecessaryWork(read_bytes=1e6, written_bytes=1e6, flops={})
    floor = Floor(work=work, memory_ms=0.2, direct_ms=0.0, least_ms=0.0, copy_ms=copy_ms)
    with writing(tmp_path / "run", doubted(2.0, "confirmed", floor=floor)) as writer:
        pass
    with RunLog.open(writer.log.folder) as log:
        view = fold("one", log.events("one"))
    assert times_the_roofline(view, 0.9) == pytest.approx(times, rel=0.01)
    assert (near_floor(view, 0.9) is not None) is (times < 1.1)


def facts(usage, model="m"):
    return ReplyFacts(
        finish_reason="stop", model=model, usage=usage, provider="p", provider_request_id=None, latency_s=None
    )


PRICES = Prices.model_validate({"price": [{"model": "m*", "input": 2.0, "cached": 1.0, "output": 10.0}]})


@pytest.mark.parametrize(
    ("usage", "model", "usd"),
    [
        (Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=100_000), "m", 1.0 + 0.5 + 1.0),
        (Usage(input_tokens=1, output_tokens=1, cost_usd=0.25), "m", 0.25),
        (Usage(input_tokens=1), "m", None),
        (Usage(output_tokens=1), "m", None),
        (Usage(input_tokens=1, output_tokens=1), "other", None),
    ],
)
def test_the_provider_goes_before_the_table_and_what_is_not_known_costs_no_number(usage, model, usd):
    assert PRICES.usd(facts(usage, model), model) == (usd if usd is None else pytest.approx(usd))


@pytest.mark.parametrize(
    ("text", "said"),
    [('[[price]]\nmodel = "m"\ninput = -1.0\noutput = 1.0\n', r"price\.0\.input"), (None, "price table")],
)
def test_a_malformed_or_missing_table_is_told(tmp_path, text, said):
    if text is not None:
        (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(PriceError, match=said):
        load_prices(str(tmp_path / "prices.toml"))


def test_one_unknown_reply_makes_the_sum_unknown(log):
    view = searched(log)
    costs = spent(view, Prices())
    assert (costs.tokens, costs.usd) == (None, None)
    assert exceeded(Budget(), costs) is None


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
    assert improve(view, view.attempts[0], random.Random(0)).idea == winner


def test_a_problem_does_not_learn_from_itself(tmp_path):
    with new_log(tmp_path / "run") as log:
        searched(log)
        assert {idea.tried for idea in IdeaStatistics(log, CONFIG).ideas(PROBLEM)} == {0}


PRODUCT = {"operators": ("matmul",), "bound": "compute", "target": "cuda"}
NARROW = PRODUCT | {"narrow": True}


def names(**traits):
    fields = {"operators": (), "bound": None, "target": "cpp"} | traits
    return {idea.name for idea in applicable(idea_bank(), Traits(**fields))}


@pytest.mark.parametrize(
    ("idea", "fitting", "other"),
    [
        ("split by residue", {"operators": ("transposed_convolution",)}, {"operators": ("softmax",)}),
        ("write past the cache", {"bound": "memory"}, {"bound": "compute"}),
        ("warp shuffles", {"target": "cuda"}, {"target": "cpp"}),
        ("split products on tensor cores", PRODUCT, NARROW),
        ("library product, own rest", NARROW, NARROW | {"library": False}),
    ],
    ids=["operator", "bound", "target", "operands of 16 bits, which are not split", "operator policy"],
)
def test_an_idea_applies_by_what_is_known_of_the_problem(idea, fitting, other):
    assert idea in names(**fitting) and idea not in names(**other)


def test_what_is_not_known_excludes_nothing():
    assert names() >= names(operators=("softmax",), bound="memory")


def test_what_16_bits_allow_is_tried_only_there():
    more = names(**NARROW) - names(**PRODUCT)
    assert len(more) == 3 and "tensor cores fed ahead" in more


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


LADDER_PRICES = Prices.model_validate(
    {"price": [{"model": "scripted-1", "input": 1, "output": 1}, {"model": "strong*", "input": 100, "output": 100}]}
)


def test_the_bandit_asks_mostly_the_model_with_the_best_gain_for_its_price():
    view = view_of(RIGHT, ("improve", 1, "x", 1.5), ("improve", 2, "y", 2.0))
    config = LADDER.model_copy(update={"choice": "bandit"})
    asked = [choose_model(view, config, LADDER_PRICES, random.Random(seed)) for seed in range(100)]
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
    """Chains of operators are not in the catalog."""
    catalog = traits_of_the_catalog("bfloat16" if idea.when.narrow else None)
    assert any(applicable([idea], traits._replace(chain=idea.when.chain)) for traits in catalog)
    assert not idea.when.chain or not any(applicable([idea], traits) for traits in catalog)


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


TUNING = SearchConfig(model="m", attempts=20)
KNOBS = (Knob(name="A", value="1", values=("1", "2", "3")), Knob(name="B", value="x", values=("x", "y")))


def tunable(*screenings):
    view = view_of(("propose", None, "a", 1.5))
    only = view.attempts[0]
    found = only.extraction.model_copy(update={"knobs": KNOBS})
    shown = tuple(Screening(setting=setting, candidate_ms=ms) for setting, ms in screenings)
    return view.model_copy(update={"attempts": (only.model_copy(update={"extraction": found, "screenings": shown}),)})


def test_every_other_value_is_looked_at_once_beside_the_candidate_itself_within_the_budget():
    attempt, settings = to_screen(tunable(), TUNING)
    assert (attempt.number, settings) == (1, (AS_IT_IS, "A = 2", "A = 3", "B = y"))
    assert len(to_screen(tunable(), TUNING.model_copy(update={"tune": 1}))[1]) == 3
    assert to_screen(tunable((AS_IT_IS, 1.0)), TUNING) is None


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
    found = to_judge(tunable(*screenings), TUNING.model_copy(update={"tune": tune}))
    assert [setting for _, setting in found] == judged
