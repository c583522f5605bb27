"""What the report on placebos of a device finds: a bias that was planted, and none where there is none."""

import numpy as np
import pytest

from bench.gpu_placebo import error_lines, report, sign_p

TURNS, SIDES = 12, ("candidate", "eager", "eager again")


def rows(placebo=1.0, candidate=1.0, first_place=1.0, positions=True):
    """Two verdicts for each of 20 problems, from 10 us to 10 ms, with one percent of noise."""
    rng = np.random.RandomState(0)
    found = []
    for number in range(40):
        eager_ms = 0.01 * 1000 ** (number // 2 / 19)
        places = {side: [(turn + k) % 3 for turn in range(TURNS)] for k, side in enumerate(SIDES)}
        times = {
            side: [eager_ms * bias * (first_place if place == 0 else 1) * rng.normal(1, 0.01) for place in places[side]]
            for side, bias in zip(SIDES, (candidate, 1.0, placebo), strict=True)
        }
        found.append(
            {"problem": str(number // 2), "outcome": "same", "device_ms": times, "check": None, "events_ms": eager_ms}
            | {"candidate_ms": times["candidate"], "eager_ms": times["eager"], "placebo_eager_ms": times["eager"]}
            | {"placebo_ms": times["eager again"], "positions": places if positions else None}
        )
    return found


def failing(**planted):
    return [line.split("FAIL ")[1] for line in str(report(rows(**planted))).splitlines() if "FAIL" in line]


def test_where_no_side_is_favoured_all_holds():
    assert failing() == [] and report(rows()).holds


@pytest.mark.parametrize("side", ["placebo", "candidate"])
def test_a_side_that_is_slower_by_a_percent_and_a_half_is_found_by_interval_and_signs(side):
    assert [line.split(":")[0] for line in failing(**{side: 1.015})] == [
        f"{side}, {span} 100 us" for span in ("under", "over") for _ in range(2)
    ]


def test_a_planted_first_place_and_missing_positions_are_found():
    found = failing(first_place=1.03)
    assert found and all(line.startswith("position") for line in found)
    assert failing(positions=False) == ["positions: the records do not tell them"]


def test_the_sign_test_is_the_binomial_one():
    assert sign_p([1.0] * 9 + [-1.0]) == pytest.approx(22 / 1024) and sign_p([0.0, 1.0, -1.0]) == 1.0


def test_the_clocks_error_is_told_by_method_and_by_the_nearest_length():
    told = error_lines([{"events_ms": 0.06, "check": {"method": "chain", "time_ms": 0.062}}] * 2)
    assert len(told) == 1 and "chain" in told[0] and "50 us: +2.0 us" in told[0]
