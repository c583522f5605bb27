"""Timing of a candidate: processes, weights, the placebo, an early end and the check for moved data."""

import random

import pytest
import torch

from kernelwright.sandbox.calls import gpu_chain
from kernelwright.sandbox.calls.gpu_chain import is_among, moves_data
from kernelwright.sandbox.judge.judging import Judge, judge
from kernelwright.sandbox.timing.paired import is_clearly_slower
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import (
    Authenticity,
    Candidate,
    Evidence,
    Failed,
    Measurement,
    Pairing,
    Passed,
)
from tests.support.problems import tiny_problem
from tests.support.tensors import listed

SETTINGS = JudgeSettings(warm_up=1, worker_pairs=3, min_pairs=12, max_pairs=12)
NORM = tiny_problem(
    """
import torch

class Model(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = torch.nn.LayerNorm(columns)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return [256]
""",
    name="norm",
    title="Layer norm",
    size="file",
)
HONEST = NORM.source.replace("class Model(", "class ModelNew(")
IGNORES_WEIGHTS = HONEST.replace("return self.norm(x)", "return torch.nn.functional.layer_norm(x, x.shape[-1:])")


@pytest.fixture(scope="module")
def honest():
    with Judge(NORM, SETTINGS) as keeper:
        found = keeper.judge(Candidate(source=HONEST))
        assert isinstance(found, Passed), found
        yield found


@pytest.mark.slow
def test_every_pair_of_processes_gives_as_many_samples_of_each_kind(honest):
    """Of the candidate, of the baseline against itself, of the protocol's cost and of processor time."""
    found = honest.measurement
    assert found.closest.workers == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert found.placebo.workers == (0, 0, 1, 1, 2, 2)
    assert (len(found.protocol_ms), len(found.candidate_cpu_ms)) == (3, 12)
    assert min(*found.protocol_ms, *found.candidate_cpu_ms) > 0


@pytest.mark.slow
def test_only_a_candidate_that_repeats_itself_is_called_deterministic(honest):
    source = HONEST.replace("return self.norm(x)", "y = self.norm(x); return y * (1 + 1e-7 * torch.randn_like(y))")
    drawing = judge(NORM, Candidate(source=source), SETTINGS)
    assert (honest.evidence.deterministic, drawing.evidence.deterministic) == (True, False)


@pytest.mark.slow
def test_weights_that_the_constructor_set_to_one_and_zero_can_not_be_left_out():
    verdict = judge(NORM, Candidate(source=IGNORES_WEIGHTS), SETTINGS)
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage == "check"


@pytest.mark.slow
def test_without_other_weights_they_could_be():
    settings = SETTINGS.model_copy(update={"without": ("weights",)})
    verdict = judge(NORM, Candidate(source=IGNORES_WEIGHTS), settings)
    assert isinstance(verdict, Passed), verdict
    assert verdict.evidence.without == ("weights",)


@pytest.mark.long
@pytest.mark.slow
def test_the_compiled_baseline_is_measured_on_the_same_values():
    settings = SETTINGS.model_copy(update={"compiled": ("default",), "worker_pairs": 1, "min_pairs": 4, "max_pairs": 4})
    verdict = judge(NORM, Candidate(source=HONEST), settings)
    assert isinstance(verdict, Passed), verdict
    assert [pairing.baseline for pairing in verdict.measurement.pairings] == ["eager", "torch.compile default"]


def measurement(speedup, placebo):
    def pairing(ratio):
        return Pairing(baseline="eager", candidate_ms=(1.0,) * 8, baseline_ms=(ratio,) * 8)

    return Measurement(pairings=(pairing(speedup),), threads=1, placebo=pairing(placebo))


@pytest.mark.parametrize(
    ("speedup", "comparison"), [(1.5, "faster"), (1.005, "same"), (1.0, "same"), (0.995, "same"), (0.5, "slower")]
)
def test_a_difference_below_one_percent_is_none(speedup, comparison):
    assert measurement(speedup, 1.0).comparison == comparison


@pytest.mark.parametrize("placebo", [0.9, 1.1])
def test_where_the_baseline_differs_from_itself_nothing_is_claimed(placebo):
    assert measurement(1.5, placebo).comparison == "too_noisy"


def test_old_records_without_a_placebo_still_say_what_they_said():
    evidence = Evidence(
        jail=(), seconds={}, authenticity=Authenticity(label="custom"), problem_status=None, versions={}
    )
    old = Passed(measurement=measurement(2.0, 1.0), evidence=evidence).model_dump()
    for key in ("placebo", "protocol_ms", "candidate_cpu_ms", "cores"):
        del old["measurement"][key]
    assert Passed.model_validate(old).measurement.comparison == "faster"


TRIALS = 60


def measured(speedup, workers=4, between=0.02, within=0.04, seed=0, placebo=1.0):
    """Four pairs for each worker; `between` processes and `within` them the logarithm of the ratio spreads so."""
    rng = random.Random(seed)
    ratios, numbers = [], []
    for number in range(workers):
        own = rng.gauss(0, between)
        ratios += [speedup * 2.718281828 ** (own + rng.gauss(0, within)) for _ in range(4)]
        numbers += [number] * 4
    pairing = Pairing(
        baseline="eager", candidate_ms=(1.0,) * len(ratios), baseline_ms=tuple(ratios), workers=tuple(numbers)
    )
    steady = Pairing(baseline="eager again", candidate_ms=(1.0,) * 6, baseline_ms=(placebo,) * 6)
    return Measurement(pairings=(pairing,), threads=1, placebo=steady)


def test_half_as_fast_is_clearly_slower():
    assert is_clearly_slower(measured(0.5))


@pytest.mark.parametrize("speedup", [1.0, 1.5, 4.0])
def test_what_is_as_fast_or_faster_is_measured_in_full(speedup):
    assert not is_clearly_slower(measured(speedup, between=0, within=0.001))


def test_what_a_few_processes_or_a_wide_spread_or_a_differing_baseline_leave_open_is_measured_on():
    assert not is_clearly_slower(measured(0.1, workers=3, between=0, within=0.001))
    assert not is_clearly_slower(measured(0.2, between=0.4, within=0.5))
    assert not is_clearly_slower(measured(0.5, placebo=1.1))


def test_a_width_that_five_processes_may_have_is_too_much_for_four():
    def pairs(workers):
        """Intervals of about the same width from either number."""
        ratios = [0.3 * 2.718281828 ** (0.3 * (number % 2) + 0.01 * turn) for number in range(4) for turn in range(4)]
        numbers = [index % workers for index in range(16)]
        pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * 16, baseline_ms=tuple(ratios), workers=tuple(numbers))
        return Measurement(pairings=(pairing,), threads=1)

    assert pairs(5).interval.half_width == pytest.approx(pairs(4).interval.half_width, rel=0.1)
    assert is_clearly_slower(pairs(5))
    assert not is_clearly_slower(pairs(4))


@pytest.mark.parametrize("between", [0.01, 0.05, 0.2])
def test_looking_after_each_worker_never_calls_an_equal_candidate_slower(between):
    for seed in range(TRIALS):
        assert not any(is_clearly_slower(measured(1.0, workers, between, between, seed)) for workers in (4, 5, 6))


@pytest.mark.parametrize("speedup", [0.5, 0.2])
def test_what_ends_early_is_as_slow_as_it_is_said_to_be(speedup):
    """The reported interval, taken from few processes, still is right about as often as it says."""
    ended = [found for seed in range(TRIALS) if is_clearly_slower(found := measured(speedup, seed=seed))]
    right = sum(found.interval.low <= speedup <= found.interval.high for found in ended)
    assert len(ended) > TRIALS / 2
    assert right / len(ended) > 0.9


PROGRAMS = {
    "rolled": (lambda x: [x.roll(3, 0)], True),
    "every other row": (lambda x: [x[::2].contiguous()], True),
    "transposed": (lambda x: [x.T.contiguous()], True),
    "rows in an order that the values give": (lambda x: [x[x[:, 0].argsort()]], True),
    "each column sorted": (lambda x: [x.sort(0).values], False),
    "a moved result beside a computed one": (lambda x: [x.exp(), x.flip(0)], True),
    "a result that is moved in half": (lambda x: [torch.cat([x.exp(), x])], True),
    "padded with zeros": (lambda x: [torch.nn.functional.pad(x, (0, 4))], True),
    "a maximum with zero": (lambda x: [x.relu()], False),
    "computed": (lambda x: [x.exp()], False),
    "nothing but zeros": (lambda x: [torch.zeros_like(x)], False),
    "no elements": (lambda x: [x[:0]], False),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moved_data_is_told_from_computed(name, dtype):
    program, moved = PROGRAMS[name]
    inputs = [torch.randn(64, 64, dtype=dtype) for _ in range(4)]

    assert moves_data([listed(x) for x in inputs], [listed(*program(x)) for x in inputs]) is moved


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_that_hold_every_word_of_16_bits_are_not_the_source_of_all_results(name):
    program, moved = PROGRAMS[name]
    inputs = [torch.randn(1024, 1024).bfloat16() for _ in range(4)]
    words, computed = (one.view(torch.int16) for one in (inputs[0], inputs[0].exp()))
    assert torch.isin(computed, words).float().mean() > 0.9

    assert moves_data([listed(x) for x in inputs], [listed(*program(x)) for x in inputs]) is moved


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_a_sample_is_looked_up_part_by_part(monkeypatch, dtype):
    monkeypatch.setattr(gpu_chain, "PART", 100)
    sample, words = torch.randint(200, (50,)).to(dtype), torch.randint(90, (1001,)).to(dtype)
    assert torch.equal(is_among(sample, [words]), torch.isin(sample, words))
    assert not is_among(sample, [words[:0]]).any()


def test_words_of_several_calls_are_looked_up_together(monkeypatch):
    monkeypatch.setattr(gpu_chain, "PART", 100)
    first, second = torch.arange(1001, dtype=torch.int16), torch.arange(1001, dtype=torch.int16) * 7
    together = first.long() * gpu_chain.MULTIPLIER + second
    assert is_among(together, [first, second]).all() and not is_among(together + 1, [first, second]).any()
