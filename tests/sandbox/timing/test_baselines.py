import contextlib
import logging

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from tests.sandbox.timing.test_timing import NORM

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
