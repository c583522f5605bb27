"""What each accuracy accepts, through real children, and what follows from the errors that a verdict keeps."""

import pytest

from kernelwright.problems import Problem
from kernelwright.problems.input_distributions import DISTRIBUTIONS
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.backend import DeviceVersions
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.pool.executor import Conditions
from kernelwright.sandbox.storage import Store, baseline_key
from kernelwright.sandbox.timing.baseline_facts import BaselineErrors
from kernelwright.sandbox.timing.gpu_baselines import LUCK
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.sandbox.conftest import QUICK

pytestmark = pytest.mark.slow

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, a, b):
        return {result}

def get_inputs():
    return [torch.rand(64, 128), torch.rand(128, 72)]

def get_init_inputs():
    return []
"""
PROBLEM = Problem(name="product", title="", family="test", size="cpu", source=SOURCE)
NEAR, FAR = "1 + 2e-5", "1 + 1e-3"
CLAMPED = "torch.clamp(a, max=4)"


def candidate(factor: str = "1", a: str = "a") -> Candidate:
    before, _, _ = SOURCE.replace("Model(", "ModelNew(").partition("def get_inputs")
    return Candidate(source=before.format(result=f"({a}.double() @ b.double() * ({factor})).float()"))


def judging(accuracy: str, result: str = "a @ b") -> Judge:
    problem = PROBLEM.model_copy(update={"source": SOURCE.format(result=result)})
    return Judge(problem, QUICK.model_copy(update={"accuracy": accuracy, "worker_pairs": 1}))


def test_ieee_refuses_what_kernelbench_accepts_and_says_so():
    with judging("ieee") as judge:
        near, far = judge.judge(candidate(NEAR)), judge.judge(candidate(FAR))
    assert near.stage == far.stage == "check"
    assert "within the bound of kernelbench" in near.reason and "within" not in far.reason
    assert near.evidence.errors["l2"] > 1 > near.evidence.errors["kernelbench"]
    assert [near.evidence.meets(accuracy) for accuracy in ("ieee", "default", "kernelbench")] == [False, False, True]
    assert far.evidence.meets("kernelbench") is False


def test_kernelbench_looks_at_inputs_as_drawn_alone():
    with judging("kernelbench") as judge:
        passed = [judge.judge(candidate(NEAR)), judge.judge(candidate(a=CLAMPED))]
        assert judge.judge(candidate(FAR)).stage == "check"
    assert {verdict.outcome for verdict in passed} == {"passed"}
    assert (
        set(passed[0].evidence.families_left_out) == set(DISTRIBUTIONS) and passed[0].evidence.accuracy == "kernelbench"
    )
    assert passed[0].evidence.meets("ieee") is None  # nothing was held to that bound
    with judging("ieee") as judge:
        assert judge.judge(candidate(a=CLAMPED)).outcome == "failed"


@pytest.mark.parametrize(("accuracy", "status"), [("kernelbench", "weak"), ("ieee", "ok")])
def test_a_problem_whose_results_are_near_zero_is_weak_for_kernelbench_alone(accuracy, status):
    with judging(accuracy, "1e-7 * (a @ b)") as judge:
        assert judge.reference.status.status == status


@pytest.mark.parametrize("accuracy", ["ieee", "default", "tf32"])
def test_on_a_processor_torchs_switches_allow_nothing_more(accuracy):
    with judging(accuracy) as judge:
        right, wrong = judge.judge(candidate()), judge.judge(candidate(NEAR))
    assert right.evidence.meets("ieee") and right.evidence.errors["l2"] < 1
    assert wrong.stage == "check" and f"wrong at {accuracy}" in wrong.reason


def test_errors_that_were_kept_of_a_device_are_allowed_twice(monkeypatch, tmp_path):
    """The facts of a device stand in its store; no device is asked for them."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    backend = backend_of(JudgeSettings(device="cuda", accuracy="default"))
    backend.place = DeviceVersions("card", {})
    baselines = backend.baselines(PROBLEM)
    assert baselines.allowed("default", find=False) is None
    errors = {"largest": 300.0, "l2": 400.0, "slice": 0.2, "kernelbench": 7.0}
    key = baseline_key(PROBLEM.digest, "card", {}, "eager as shipped")
    Store("baseline-accuracy").put(key, BaselineErrors(errors, is_equal=False))
    allowed = baselines.allowed("default")
    assert allowed == {"largest": LUCK * 300, "l2": LUCK * 400, "slice": 1.0, "usual": 1.0}
    assert baselines.allowed("tf32", find=False) is None


def test_verdicts_of_two_accuracies_are_kept_apart():
    chosen = [
        JudgeSettings(accuracy=accuracy, cores=(0,)).model_dump(mode="json") for accuracy in ("ieee", "kernelbench")
    ]
    assert len({Conditions.here("device", settings).alike for settings in chosen}) == 2
