"""What a search may spend: limits are kept, and what is unknown is never taken for nothing."""

import re

import pytest

from kernelwright.agent.config import Budget
from kernelwright.agent.log.records import ReplyFacts, Usage
from kernelwright.agent.log.view import fold
from kernelwright.agent.scheduler import account
from kernelwright.agent.steering import PriceError, Prices, exceeded, load_prices, spent
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork
from kernelwright.sandbox.verdict.verdicts import Failed
from tests.support.search import CONFIG, PROBLEM, ReadingEvaluator, Scripted, searched


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
    """Every right candidate takes 1 ms; the floor is what it is told."""

    def __init__(self, floor_ms):
        super().__init__()
        work = NecessaryWork(read_bytes=0, written_bytes=0, flops={"float32": 1})
        self.floor = Floor(work=work, memory_ms=0.0, direct_ms=floor_ms, least_ms=0.0)

    async def evaluate(self, problem, candidate, *, fresh=False, beat=None):
        verdict = await super().evaluate(problem, candidate, fresh=fresh, beat=beat)
        if isinstance(verdict, Failed):
            return verdict
        measurement = verdict.measurement.model_copy(update={"floor": self.floor})
        return verdict.model_copy(update={"measurement": measurement})


@pytest.mark.parametrize("floor_ms", [0.95, 1.05])
def test_near_the_floor_there_is_no_room(log, floor_ms):
    view = searched(log, evaluator=Floored(floor_ms))
    assert "1 ms" in view.stopped and f"floor is {floor_ms} ms" in view.stopped and view.spent == 2
    assert account(PROBLEM, view, CONFIG).expected_gain < 0.1


@pytest.mark.parametrize("floor_ms", [0.5, 2.0])
def test_a_floor_far_below_the_best_or_far_above_it_ends_no_search(log, floor_ms):
    view = searched(log, evaluator=Floored(floor_ms))
    assert "budget of 7 attempts" in view.stopped and view.spent == 7
    assert account(PROBLEM, view, CONFIG).expected_gain > 0.1


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
