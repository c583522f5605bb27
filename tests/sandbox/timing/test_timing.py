"""How a candidate is timed: over several processes, with other weights in each, beside a placebo."""

import pytest

from kernelwright.sandbox.judge.judging import Judge, judge
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
