import csv
import json

import pytest

from kernelwright.evals.leaderboard import MetricError, load_metrics, with_metrics
from kernelwright.evals.tables import FORMATS, headings, row_texts
from tests.evals.test_leaderboard import only_board, run_of

WORST = """
def worst(cells):
    found = [cell.result().speedup for cell in cells if cell.result().speedup is not None]
    return min(found, default=None)


def attempts(cells):
    return sum(cell.attempts for cell in cells)


def faulty(cells):
    return 1 / 0


def wordy(cells):
    return "fast"
"""


@pytest.fixture
def board(tmp_path):
    return only_board(run_of(tmp_path, "a", [4.0, 2.0, None]))


@pytest.fixture
def named(tmp_path):
    (tmp_path / "mine.py").write_text(WORST)
    return lambda *names: load_metrics([f"{tmp_path / 'mine.py'}:{name}" for name in names])


def test_a_metric_is_a_column_after_all_others(board, named):
    (found,) = with_metrics([board], named("worst", "attempts"))
    assert headings(found)[-2:] == ("worst", "attempts")
    assert row_texts(found.rows[0], found)[-2:] == ["2", "3"]


def test_a_metric_sees_the_ranked_problems_alone_and_may_be_without_a_value(board, named, tmp_path):
    weak = board.model_copy(update={"weak": ("two",)})
    (found,) = with_metrics([weak], named("worst"))
    assert found.rows[0].own == {"worst": pytest.approx(4.0)}
    (found,) = with_metrics([only_board(run_of(tmp_path, "b", [None]))], named("worst"))
    assert found.rows[0].own == {"worst": None} and row_texts(found.rows[0], found)[-1] == "-"


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_can_be_written(board, named, form):
    text = FORMATS[form](with_metrics([board], named("worst")))
    assert "worst" in text or form == "csv"
    if form == "json":
        assert json.loads(text)["boards"][0]["rows"][0]["own"]["worst"] == pytest.approx(2.0)
    if form == "csv":
        assert len(list(csv.DictReader(text.splitlines()))) == 3, "its lines stay those of cells"


@pytest.mark.parametrize("name", ["faulty", "wordy"])
def test_a_metric_that_gives_no_number_is_told(board, named, name):
    with pytest.raises(MetricError, match=f"metric '{name}' failed .*; correct it"):
        with_metrics([board], named(name))


def test_what_can_not_be_found_is_told(named):
    with pytest.raises(MetricError, match=r"'best'.*\(cells\)"):
        named("best")
    with pytest.raises(MetricError, match=r"'mine'.*file.py:function"):
        load_metrics(["mine"])
    with pytest.raises(MetricError, match=r"no metric file gone.py"):
        load_metrics(["gone.py:worst"])
    with pytest.raises(MetricError, match=r"two .*'worst'"):
        named("worst", "worst")
