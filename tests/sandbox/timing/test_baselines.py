"""Baselines: their status and processes, those beside strict eager, and their accuracy."""

import contextlib
import logging

import pytest
import torch

from kernelwright.problems import load_problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.reference import Form
from kernelwright.sandbox.correctness.families import Domain
from kernelwright.sandbox.tensors import RawTensor, Values
from kernelwright.sandbox.timing.baseline_facts import accuracy_of
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from tests.sandbox.timing.test_timing import NORM
from tests.support.problems import tiny_problem

PROBLEM = load_problem("max_rows", "cpu")
WEAK = ProblemStatus(status="weak", why=("it accepts zeros",))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


@pytest.fixture
def started(caplog):
    caplog.set_level(logging.DEBUG, "kernelwright.sandbox.calls")
    return lambda: caplog.messages.count("reference has greeted")


class Known(Baselines):
    def _found_status(self):
        self._statuses.put(self._status_key, WEAK.model_dump(mode="json"))
        return WEAK


@pytest.mark.slow
def test_a_problems_status_is_found_once_for_all_judges(started):
    with contextlib.closing(backend_of(JudgeSettings()).baselines(PROBLEM)) as first:
        found = first.status
    assert started() == 1
    with contextlib.closing(backend_of(JudgeSettings()).baselines(PROBLEM)) as second:
        assert second.status == found
    assert started() == 1


def test_a_status_stands_for_one_problem_and_one_kind_of_device():
    assert Known(PROBLEM, backend_of(JudgeSettings())).status == WEAK
    assert backend_of(JudgeSettings()).baselines(PROBLEM).known_status == WEAK
    assert backend_of(JudgeSettings(device="cuda")).baselines(PROBLEM).known_status is None
    assert backend_of(JudgeSettings()).baselines(load_problem("sum_rows", "cpu")).known_status is None


def test_a_status_of_other_rules_is_found_again(monkeypatch):
    assert Known(PROBLEM, backend_of(JudgeSettings())).status == WEAK
    monkeypatch.setattr("kernelwright.sandbox.verdict.judge_version.JUDGE_VERSION", JUDGE_VERSION + 1)
    assert backend_of(JudgeSettings()).baselines(PROBLEM).known_status is None


@pytest.mark.slow
@pytest.mark.skipif(len(JudgeSettings().cores) < 2, reason="this processor has one core")
@pytest.mark.parametrize("effort", ["search", "rank"])
def test_values_are_drawn_by_two_processes_that_are_not_timed_on_them(effort):
    with contextlib.closing(backend_of(JudgeSettings(effort=effort)).baselines(PROBLEM)) as baselines:
        baselines.start()
        for number in range(2):
            sources = baselines.sources(number)
            assert len({id(each) for each in (baselines.eager(number), baselines.placebo(number), *sources)}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "settings"), [(PROBLEM, JudgeSettings(worker_pairs=3, min_pairs=12)), (NORM, JudgeSettings())]
)
def test_one_process_draws_where_the_others_are_timed_or_there_is_little_to_draw(problem, settings):
    with contextlib.closing(backend_of(settings).baselines(problem)) as baselines:
        assert baselines.sources(0) == [baselines.eager(2)]
        assert not baselines.draws_twice


@pytest.mark.slow
def test_each_candidate_begins_with_another_process_and_waits_for_one_start_at_most_after_the_first(started):
    with contextlib.closing(backend_of(JudgeSettings(effort="search")).baselines(NORM)) as baselines:
        began, starts = [], []
        for _ in range(6):
            before = started()
            baselines.next_candidate()
            baselines.start()
            mine = [id(baselines.eager(number)) for number in range(3)]
            assert len(set(mine)) == 3 and id(baselines.placebo(0)) == mine[1]
            began.append(mine[0])
            starts.append(started() - before)
        assert starts == [3, 1, 0, 0, 0, 0]
        assert len(set(began[:4])) == 4 and began[4:] == began[:2]


@pytest.mark.slow
def test_all_references_of_a_problem_are_lent_memory_for_the_same_inputs():
    with contextlib.closing(backend_of(JudgeSettings()).baselines(PROBLEM)) as baselines:
        assert baselines.eager(0).sample is not None
        assert baselines.eager(1).sample is baselines.eager(0).sample


SETTINGS = JudgeSettings(threads=1, worker_pairs=1)
SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LAYER

    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.randn(SHAPE)]

def get_init_inputs():
    return []
"""


def problem_of(layer="Conv2d(3, 4, 3)", shape="2, 3, 8, 8", direction="forward", before=""):
    source = SOURCE.replace("LAYER", layer).replace("SHAPE", shape).replace("return self", f"{before}return self")
    return tiny_problem(source, name="layer", size="file", direction=direction)


def test_each_form_has_a_name_of_its_own():
    forms = [Form(), Form(precision="shipped"), Form(precision="tf32"), Form(channels_last=True), Form("default")]
    forms += [Form("default", precision="tf32"), Form("default", precision="shipped")]
    assert [form.baseline for form in forms] == [
        "eager", "eager as shipped", "eager tf32", "eager channels_last", "torch.compile default",
        "torch.compile default tf32", "torch.compile default as shipped",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [problem_of(), problem_of("Conv3d(3, 4, 3)", "2, 3, 4, 8, 8"), problem_of(direction="both")]
)
def test_channels_last_computes_what_eager_computes(problem):
    with (
        contextlib.closing(backend_of(SETTINGS).reference(problem, Form(changed_weights=True))) as eager,
        contextlib.closing(backend_of(SETTINGS).reference(problem, Form(channels_last=True))) as other,
    ):
        assert eager.is_spatial and other.adopt(eager)
        values = eager.draw()
        expected, found = eager.call(values).output, other.call(values).output
    assert expected.tree == found.tree
    for one, another in zip(expected.tensors, found.tensors, strict=True):
        torch.testing.assert_close(one.tensor(), another.tensor())


@pytest.mark.slow
def test_a_baseline_that_cannot_run_is_left_out_by_name_with_a_short_reason():
    rigid = problem_of(before="assert x.is_contiguous(), 'a row' * 99; ")
    with contextlib.closing(backend_of(SETTINGS).baselines(rigid)) as baselines:
        forms = [Form(channels_last=True), Form()]
        assert [other.name for other in baselines._available(forms)] == ["eager"]
        ((name, reason),) = baselines.unavailable.items()
        assert name == "eager channels_last" and "AssertionError" in reason
        assert len(reason) <= 200 and "\n" not in reason


@pytest.mark.slow
def test_on_a_processor_there_are_compiled_modes_alone_and_their_accuracy_is_not_told():
    with contextlib.closing(backend_of(SETTINGS).baselines(problem_of())) as baselines:
        assert baselines.others(0) == [] and baselines.accuracy() == ({}, ())


def shortened(values):
    """The same values with the precision of bfloat16."""
    return Values(values.tree, tuple(RawTensor.of(raw.tensor().bfloat16().float()) for raw in values.tensors))


@pytest.mark.slow
def test_a_less_accurate_baseline_does_not_qualify_and_its_errors_are_shares_of_the_bound():
    with contextlib.closing(backend_of(SETTINGS).reference(problem_of("Linear(64, 64)", "64, 64"))) as eager:
        assert not eager.is_spatial
        calls = {
            "same": eager.call,
            "short": lambda values: (timed := eager.call(values))._replace(output=shortened(timed.output)),
        }
        found = accuracy_of(calls, eager, Domain())
    same, short = found["same"], found["short"]
    assert same.is_equal and not short.is_equal
    assert {"largest", "l2", "slice"} <= same.errors.keys()
    assert 0 < max(same.errors.values()) <= 1 < max(short.errors.values())
