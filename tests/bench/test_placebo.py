"""What a number of placebos says of all of them."""

import pytest

from bench.placebo import Placebo, Placebos, least, most


@pytest.mark.parametrize(("count", "of", "share"), [(0, 299, 0.00997), (1, 100, 0.0466), (5, 200, 0.0519), (3, 3, 1.0)])
def test_the_bounds_are_those_of_clopper_and_pearson(count, of, share):
    assert most(count, of) == pytest.approx(share, abs=2e-4)


def test_all_that_were_covered_of_few_say_little():
    assert least(10, 10) == pytest.approx(0.741, abs=1e-3)


def test_the_report_counts_what_was_said_and_what_was_covered():
    right = Placebo("same", 1.01, True, 3, 2.0)
    found = Placebos((right, right, Placebo("faster", 1.2, False, 1, 1.0), Placebo("failed", None, None, 0, 9.0)))
    assert not found.holds
    assert "2 same, 1 faster, 1 failed" in str(found) and "1 in 2 of 3" in str(found)
