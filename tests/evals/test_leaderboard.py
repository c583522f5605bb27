"""Boards rank entrants by what counts of their kernels; two runs are compared by pairs."""

import csv
import io
import json
import random

import pytest

from kernelwright.agent.log.events import Resumed
from kernelwright.agent.log.store import RunLog
from kernelwright.evals import tables
from kernelwright.evals.leaderboard import MetricError, boards, compare_runs, load_metrics, with_metrics
from kernelwright.evals.metrics import summarize
from kernelwright.evals.tables import CELL_COLUMNS, FORMATS, ROW_COLUMNS, cell_texts, headings, row_texts, unranked
from kernelwright.evals.verdict_store import JudgedKernel, run_summary
from tests.support.runs import Writer, doubted, failed, passed, problem, setting, writing

JUDGE = "h1"
NAMES = ("one", "two", "three", "four")


def run_of(folder, model, speedups, device="Example CPU", judge_version=JUDGE, **facts):
    """A run with one attempt for each problem: a speedup, a whole verdict, or None for a failure."""
    wanted = [problem(name) for name in NAMES[: len(speedups)]]
    with RunLog.create(folder / model, wanted, setting(device=device, model=model, judge_version=judge_version)) as log:
        for one, speedup in zip(wanted, speedups, strict=True):
            writer = Writer(log, one.name, random.Random(0))
            verdict = passed(speedup, spread=0.0, **facts) if isinstance(speedup, float) else speedup
            writer.attempt(failed() if speedup is None else verdict)
            writer.stop()
    return run_summary(folder / model)


def only_board(*runs, judge_version=JUDGE, **more):
    (board,) = boards(runs, judge_version, **more)
    return board


@pytest.mark.parametrize("other", [None, 0.25], ids=["a failure", "a slower kernel"])
def test_the_score_is_the_geometric_mean_of_lower_bounds_with_1_for_what_is_no_win(tmp_path, other):
    board = only_board(run_of(tmp_path, "a", [4.0, other]))
    assert board.rows[0].score == pytest.approx(2.0)


def test_rows_are_ranked_by_score_and_a_wide_interval_scores_below_a_narrow_one(tmp_path):
    noisy = passed(2.0, random.Random(1), spread=0.5)
    steady = passed(summarize(noisy).speedup * 0.98, spread=0.0)
    runs = [run_of(tmp_path, "noisy", [noisy]), run_of(tmp_path, "steady", [steady]), run_of(tmp_path, "fast", [9.0])]
    rows = only_board(*runs).rows
    assert [(row.rank, row.model) for row in rows] == [(1, "fast"), (2, "steady"), (3, "noisy")]


def test_failures_are_in_the_denominator_of_fast_p(tmp_path):
    row = only_board(run_of(tmp_path, "a", [4.0, None, None, 1.2])).rows[0]
    assert (row.fast["best"][0.0], row.fast["best"][2.0]) == (0.5, 0.25)


@pytest.mark.parametrize("doubt", ["too_noisy", "unconfirmed"])
def test_a_doubtful_speedup_counts_as_1_and_is_marked(tmp_path, doubt):
    board = only_board(run_of(tmp_path, "a", [doubted(4.0, doubt)]))
    (row,) = board.rows
    (cell,) = row.cells
    assert (row.score, row.fast["best"][1.0], row.geometric_mean.value, row.correct) == (1.0, 0.0, 1.0, 1)
    assert cell.published.speedup == pytest.approx(4.0)
    assert doubt.replace("_", " ") in CELL_COLUMNS["speedup [95 %]"](cell)


def test_a_kernel_of_an_older_clock_is_shown_by_name_and_left_out_of_the_mean(tmp_path):
    runs = run_of(tmp_path, "old", [doubted(9.0, "events")]), run_of(tmp_path, "new", [doubted(2.0, "confirmed")])
    new, old = only_board(*runs).rows
    assert (new.model, new.cells[0].status, old.cells[0].status) == ("new", "unverified", "provisional")
    assert old.geometric_mean is None and "older clock" in old.cells[0].why
    (alone,) = only_board(runs[0]).rows
    assert alone.geometric_mean.value == pytest.approx(9.0)
    assert "older clock" in CELL_COLUMNS["speedup [95 %]"](alone.cells[0])


def test_a_less_accurate_baseline_counts_in_its_own_column_alone(tmp_path):
    verdict = passed(4.0, spread=0.0, compiled=0.5)
    less = verdict.measurement.model_copy(update={"less_accurate": ("torch.compile default",)})
    board = only_board(run_of(tmp_path, "a", [verdict.model_copy(update={"measurement": less})]))
    (cell,) = board.rows[0].cells
    texts = dict(zip(CELL_COLUMNS, cell_texts(cell), strict=True))
    assert (texts["against"], texts["against any"], board.rows[0].fast["best"][2.0]) == ("eager", "0.50", 1.0)


def test_a_problem_that_an_entrant_did_not_try_is_unsolved_for_it(tmp_path):
    board = only_board(run_of(tmp_path, "both", [2.0, 2.0]), run_of(tmp_path, "one", [2.0]))
    row = next(row for row in board.rows if row.model == "one")
    assert [cell.status for cell in row.cells].count("unsolved") == 1


def test_a_weak_problem_is_shown_and_not_ranked(tmp_path):
    weak = passed(9.0, weak=True, spread=0.0)
    board = only_board(run_of(tmp_path, "a", [weak, 2.0]))
    assert board.weak == ("one",)
    assert board.rows[0].score == pytest.approx(2.0)
    assert {cell.problem: cell.status for cell in board.rows[0].cells}["one"] == "weak problem"
    assert "one (it accepts zeros)" in unranked(board)


def test_devices_are_kept_apart(tmp_path):
    runs = [run_of(tmp_path, "a", [2.0], device="GPU A"), run_of(tmp_path, "b", [3.0], device="GPU B")]
    assert [board.device for board in boards(runs, JUDGE)] == ["GPU A", "GPU B"]


def test_a_number_of_another_harness_than_its_verdict_or_header_names_is_marked_for_judging_again(tmp_path):
    run = run_of(tmp_path, "a", [2.0], judge_version="h0")
    assert only_board(run).rows[0].stale == 1
    assert only_board(run, judge_version="h0").rows[0].stale == 0
    named = run_of(tmp_path, "b", [passed(2.0, judge_version="h1")], judge_version="h0")
    assert only_board(named).rows[0].stale == 0, "the verdict is believed over the header"
    verified = only_board(run_of(tmp_path, "c", [3.0]), verifications=again(passed(2.5), judge_version="h0"))
    assert verified.rows[0].stale == 1


def test_a_verdict_that_names_none_after_others_went_on_with_the_run_is_of_no_known_harness(tmp_path):
    with writing(tmp_path / "a", chosen=setting(judge_version=JUDGE)) as writer:
        writer.put(Resumed(problem="one"))
        writer.attempt(passed(2.0))
    assert only_board(run_summary(tmp_path / "a")).rows[0].stale == 1


def test_each_cell_names_run_attempt_and_record(tmp_path):
    run = run_of(tmp_path, "a", [2.0])
    (cell,) = only_board(run).rows[0].cells
    with RunLog.open(tmp_path / "a") as log:
        seq = int(cell.record.removeprefix("event "))
        event = next(event for event in log.events() if event.seq == seq)
        assert (event.kind, event.attempt, log.header.run_id) == ("judged", int(cell.attempt), cell.run)
        assert log.text(cell.candidate_digest)


def again(verdict, judge_version=JUDGE):
    return lambda folder, problem, candidate: kernel_of(summarize(verdict), judge_version)


def kernel_of(summary, judge_version=JUDGE):
    about = {"attempt": "a attempt 1", "record": "verified.db 1", "candidate_digest": "0" * 64}
    return JudgedKernel(**about, judge_version=judge_version, measured=summary)


def test_a_verified_number_is_published_in_place_of_the_claimed_one(tmp_path):
    board = only_board(run_of(tmp_path, "a", [3.0]), verifications=again(passed(2.5, spread=0.0)))
    (cell,) = board.rows[0].cells
    assert cell.status == "verified"
    assert (cell.published.speedup, cell.claimed.speedup) == (pytest.approx(2.5), pytest.approx(3.0))


def test_a_kernel_that_fails_when_judged_again_is_in_quarantine_and_not_credited(tmp_path):
    board = only_board(run_of(tmp_path, "a", [3.0]), verifications=again(failed("check")))
    (cell,) = board.rows[0].cells
    assert (cell.status, board.rows[0].score, board.rows[0].correct) == ("quarantined", 1.0, 0)


def with_floor(**limits):
    """A verification whose candidate takes about 1 ms."""
    found = summarize(passed(3.0)).model_copy(update=limits)
    return lambda folder, problem, candidate: kernel_of(found)


def test_only_a_time_that_no_algorithm_could_take_is_in_quarantine(tmp_path):
    def row(**limits):
        return only_board(run_of(tmp_path / str(limits), "a", [3.0]), verifications=with_floor(**limits)).rows[0]

    assert "least possible" in row(floor_ms=60.0, impossible_below_ms=50.0).cells[0].why
    counted = row(floor_ms=1.5, impossible_below_ms=0.5)
    assert (counted.cells[0].status, counted.speed_of_light) == ("verified", 1.0)
    assert row(floor_ms=0.5).roofline == pytest.approx(0.5, rel=0.05), "floor over time"


def test_runs_of_one_entrant_are_one_row_with_the_better_kernel(tmp_path):
    runs = [run_of(tmp_path / str(speedup), "a", [speedup]) for speedup in (1.5, 2.0)]
    (row,) = only_board(*runs).rows
    assert (len(row.runs), row.cells[0].attempts) == (2, 2)
    assert row.cells[0].published.speedup == pytest.approx(2.0)


def test_against_torch_compile_another_number_of_problems_is_fast(tmp_path):
    verdicts = [passed(2.0, spread=0.0, compiled=0.9), passed(2.0, spread=0.0, compiled=1.5)]
    row = only_board(run_of(tmp_path, "a", verdicts)).rows[0]
    assert [row.fast[name][1.0] for name in ("eager", "compile", "best")] == [1.0, 0.5, 0.5]


def test_a_family_has_rates_and_efforts_of_its_own(tmp_path):
    row = only_board(run_of(tmp_path, "a", [2.0, None])).rows[0]
    (group,) = row.families.values()
    assert (group.problems, group.correct, group.fast[1.0], group.compile_rate) == (2, 1, 0.5, 1.0)
    assert (group.first_correct.attempts, group.to_best.cost_usd) == (1, pytest.approx(0.01))


HOSTILE = "<script>alert(1)</script>|x"


@pytest.fixture
def hostile_board(tmp_path):
    return boards([run_of(tmp_path / "r", "m", [2.0, None]).model_copy(update={"model": HOSTILE})], JUDGE)


def test_each_format_keeps_a_hostile_name_in_its_place(hostile_board):
    page = tables.as_html(hostile_board)
    assert "<script" not in page and "&lt;script&gt;" in page
    text = tables.as_markdown(hostile_board)
    rows = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert rows[0].replace("\\|", "").count("|") == len(ROW_COLUMNS) + 1
    assert "<script" not in text.replace("\\<", "")
    cells = csv.DictReader(io.StringIO(tables.as_csv(hostile_board)))
    assert [(cell["problem"], cell["status"]) for cell in cells] == [("one", "unverified"), ("two", "unsolved")]
    found = json.loads(tables.as_json(hostile_board))
    assert found["boards"][0]["rows"][0]["model"] == HOSTILE


def searched_only(speedup):
    found = passed(speedup, spread=0.0)
    return found.model_copy(update={"evidence": found.evidence.model_copy(update={"effort": "search"})})


def test_what_was_measured_only_to_choose_is_shown_and_counts_where_asked_for_or_verified(tmp_path):
    run = run_of(tmp_path, "a", [searched_only(4.0)])
    (row,) = only_board(run).rows
    (cell,) = row.cells
    assert (cell.status, row.correct, row.score) == ("provisional", 0, 1.0)
    assert "effort search" in cell.why and cell.published.effort == "search"
    asked = only_board(run, effort="search").rows[0]
    assert asked.cells[0].status == "unverified" and asked.score > 3
    verified = only_board(run, verifications=again(passed(3.0, spread=0.0)))
    assert verified.rows[0].cells[0].status == "verified"


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


def test_runs_of_two_clocks_are_not_compared_and_a_doubtful_speedup_has_no_ratio(tmp_path):
    old, new = run_of(tmp_path, "a", [doubted(9.0, "events")]), run_of(tmp_path, "b", [doubted(2.0, "confirmed")])
    found = compare_runs(old, new)
    assert (found.ratio, found.wins, found.losses, found.pairs[0].timing_clocks) == (None, 0, 0, ("events", "gpu_time"))
    doubtful = run_of(tmp_path, "c", [doubted(9.0, "unconfirmed")])
    assert compare_runs(new, doubtful).pairs[0].ratio is None


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
