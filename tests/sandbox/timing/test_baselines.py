"""What is known of a problem's references stays known."""

import contextlib

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import ProblemStatus

PROBLEM = load_problem("max_rows", "cpu")
WEAK = ProblemStatus(status="weak", why=("it accepts zeros",))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


class Known(Baselines):
    """Has found a status."""

    def _found_status(self):
        self._statuses.put(self._status_key, WEAK.model_dump(mode="json"))
        return WEAK


@pytest.mark.slow
def test_a_problems_status_is_found_once_for_all_judges():
    with contextlib.closing(Baselines(PROBLEM, Settings())) as first:
        found = first.status
        assert first.has_started
    with contextlib.closing(Baselines(PROBLEM, Settings())) as second:
        assert second.status == found
        assert not second.has_started


def test_a_status_stands_for_one_problem_and_one_kind_of_device():
    assert Known(PROBLEM, Settings()).status == WEAK
    assert Baselines(PROBLEM, Settings())._kept_status() == WEAK
    assert Baselines(PROBLEM, Settings(device="cuda"))._kept_status() is None
    assert Baselines(load_problem("sum_rows", "cpu"), Settings())._kept_status() is None


def test_a_status_of_other_rules_is_found_again(monkeypatch):
    assert Known(PROBLEM, Settings()).status == WEAK
    monkeypatch.setattr("kernelwright.sandbox.machine.fact_store._rules_digest", lambda: "of other sources")
    assert Baselines(PROBLEM, Settings())._kept_status() is None
