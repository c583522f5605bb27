"""References against themselves: the bounds of shares, and a bias that was planted or is not there."""

import numpy as np
import pytest

from bench.placebo import Placebo, error_lines, least, most, report, report_on_card


@pytest.mark.parametrize(("count", "of", "share"), [(0, 299, 0.00997), (1, 100, 0.0466), (5, 200, 0.0519), (3, 3, 1.0)])
def test_the_bounds_are_those_of_clopper_and_pearson(count, of, share):
    assert most(count, of) == pytest.approx(share, abs=2e-4)
    assert least(of - count, of) == pytest.approx(1 - share, abs=2e-4)


def test_the_report_counts_outcomes_and_intervals_that_hold_one():
    right = Placebo("same", 1.01, True, 3, 2.0)
    found = report([right, right, Placebo("faster", 1.2, False, 1, 1.0), Placebo("failed", None, None, 0, 9.0)])
    assert not found.holds
    assert "2 same, 1 faster, 1 failed" in found.text and "1 in 2 of 3" in found.text


def rows(placebo=1.0, candidate=1.0, first_place=1.0, positions=True):
    """Two verdicts for each of 20 problems, from 10 us to 10 ms, with one percent of noise."""
    rng = np.random.RandomState(0)
    sides = {"candidate": candidate, "eager": 1.0, "eager again": placebo}
    found = []
    for number in range(40):
        eager_ms = 0.01 * 1000 ** (number // 2 / 19)
        places = {side: [(turn + k) % 3 for turn in range(12)] for k, side in enumerate(sides)}
        times = {
            side: [eager_ms * bias * (first_place if place == 0 else 1) * rng.normal(1, 0.01) for place in places[side]]
            for side, bias in sides.items()
        }
        found.append(
            {"problem": str(number // 2), "outcome": "same", "device_ms": times, "check": None, "events_ms": eager_ms}
            | {"candidate_ms": times["candidate"], "eager_ms": times["eager"], "placebo_eager_ms": times["eager"]}
            | {"placebo_ms": times["eager again"], "positions": places if positions else None}
        )
    return found


def failing(**planted):
    return [line.split("FAIL ")[1] for line in report_on_card(rows(**planted)).text.splitlines() if "FAIL" in line]


def test_where_no_side_is_favoured_all_holds():
    assert failing() == [] and report_on_card(rows()).holds


@pytest.mark.parametrize("side", ["placebo", "candidate"])
def test_a_side_that_is_slower_by_a_percent_and_a_half_is_found_by_interval_and_signs(side):
    assert [line.split(":")[0] for line in failing(**{side: 1.015})] == [
        f"{side}, {span} 100 us" for span in ("under", "over") for _ in range(2)
    ]


def test_a_planted_first_place_and_missing_positions_are_found():
    found = failing(first_place=1.03)
    assert found and all(line.startswith("position") for line in found)
    assert len(failing(positions=False)) == 1


def test_the_clocks_error_is_reported_by_method_and_by_the_nearest_length():
    lines = error_lines([{"events_ms": 0.06, "check": {"method": "chain", "time_ms": 0.062}}] * 2)
    assert len(lines) == 1 and "chain" in lines[0] and "50 us: +2.0 us" in lines[0]
