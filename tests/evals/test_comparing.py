import random

import pytest

from kernelwright.evals.leaderboard import compare_runs
from tests.evals.test_leaderboard import run_of
from tests.support.runs import doubted, passed


def test_ratios_are_paired_by_problem(tmp_path):
    found = compare_runs(run_of(tmp_path, "a", [1.0, 2.0]), run_of(tmp_path, "b", [2.0, 2.0]))
    assert [pair.ratio for pair in found.pairs] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_a_problem_that_only_one_solved_is_a_win_without_a_ratio(tmp_path):
    found = compare_runs(run_of(tmp_path, "a", [None, 2.0]), run_of(tmp_path, "b", [2.0, 2.0]))
    assert (found.wins, found.losses, found.pairs[0].ratio) == (1, 0, None)


def test_overlapping_intervals_are_no_win(tmp_path):
    noisy = [passed(speedup, random.Random(seed), spread=0.4) for seed, speedup in enumerate((1.5, 1.55))]
    found = compare_runs(run_of(tmp_path, "a", noisy[:1]), run_of(tmp_path, "b", noisy[1:]))
    assert (found.wins, found.losses, found.p_value) == (0, 0, 1.0)


def test_four_clear_wins_of_four_are_one_in_eight_by_chance(tmp_path):
    found = compare_runs(run_of(tmp_path, "a", [1.0] * 4), run_of(tmp_path, "b", [2.0] * 4))
    assert (found.wins, found.p_value) == (4, pytest.approx(0.125))


def test_runs_without_a_shared_problem_are_refused(tmp_path):
    first = run_of(tmp_path, "a", [1.0])
    second = first.model_copy(update={"problems": (), "run": "b"})
    with pytest.raises(ValueError, match="share no problem"):
        compare_runs(first, second)


def test_runs_of_two_clocks_are_not_compared_and_a_doubtful_speedup_counts_as_1(tmp_path):
    old, new = run_of(tmp_path, "a", [doubted(9.0, "events")]), run_of(tmp_path, "b", [doubted(2.0, "confirmed")])
    found = compare_runs(old, new)
    assert (found.ratio, found.wins, found.losses, found.pairs[0].timing_clocks) == (None, 0, 0, ("events", "gpu_time"))
    doubtful = run_of(tmp_path, "c", [doubted(9.0, "unconfirmed")])
    assert compare_runs(new, doubtful).pairs[0].ratio == pytest.approx(0.5)
