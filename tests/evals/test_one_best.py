"""Whatever names the best of a run names the same attempt with the same number, where the judges disagree."""

import json

import pytest

from kernelwright.agent.log.best import best_folder, write_best
from kernelwright.agent.log.events import Confirmed
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.steering import Prices, spent
from kernelwright.evals.formats import samples as kept
from kernelwright.evals.formats.samples import outcomes_of
from kernelwright.evals.report import summary_rows
from kernelwright.evals.verdict_store import run_summary
from tests.support.runs import failed, passed, writing
from tests.support.second_verdicts import ATTEMPT, LUCKY, REFUSED, SPEEDUP, Told, write_run

EVERYWHERE = (
    "view", "summary", "table", "progress", "tree", "inspector", "inspected_attempt", "fastest_of_the_attempts",
    "drawn", "facts", "board", "diff", "kept_folder", "kept_readme", "exported", "exported_readme", "rows",
)  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["told in the log", "not told in the log"])
def run(request, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("work") / "run", untold=request.param)


@pytest.fixture(scope="module")
def told(run, tmp_path_factory):
    with RunLog.open(run) as log:
        names = list(log.header.problems)
    return [Told(run, name, tmp_path_factory.mktemp("exported")) for name in names]


@pytest.mark.parametrize("teller", EVERYWHERE)
def test_each_part_tells_the_same_best(told, teller):
    for one in told[:2]:
        attempt, speedup = getattr(one, teller)()
        assert attempt in (None, ATTEMPT) and speedup == pytest.approx(SPEEDUP)


@pytest.mark.parametrize("teller", EVERYWHERE)
def test_what_a_fresh_judge_refused_is_the_best_nowhere(told, teller):
    assert getattr(told[2], teller)() in (None, (None, None))


def test_other_benchmarks_formats_hold_the_same_best(told):
    tree, definition, _ = told
    assert tree.benched() == (ATTEMPT, pytest.approx(SPEEDUP))
    assert tree.submitted() == (ATTEMPT, None)
    assert definition.traced() == (ATTEMPT, pytest.approx(SPEEDUP))


def test_a_candidate_that_was_refused_is_refused_in_each_row_of_it(told):
    for one in told[:2]:
        outcomes = {outcome.facts["attempt"]: outcome.passed for outcome in one.outcomes}
        assert outcomes == {REFUSED: False, 2: True, 3: True, 4: False, 5: False}
        assert [one["outcome"] for one in one.index["attempts"]].count("passed") == 2


def test_the_counts_of_right_attempts_are_the_same(told, run):
    right = [row["passed"] for row in summary_rows(told[0].views, run)]
    assert right == [facts.passed for facts in run_summary(run).problems] == [2, 2, 0]


def test_the_seconds_of_judging_are_those_of_the_verdicts_that_were_reached(told):
    verdicts = [event.body.verdict for event in told[0].events if event.kind in ("judged", "confirmed")]
    each = sum(verdicts[0].evidence.seconds.values())
    reached = (4 + 2) * each  # of the twin no verdict was reached
    view = next(view for view in told[0].views if view.problem == told[0].name)
    assert spent(view, Prices()).judge_s == pytest.approx(reached)


def test_the_pages_and_the_kept_folders_say_which_judge_measured(told, run):
    assert f"{LUCKY:.2f} \u00d7" in told[0].details[ATTEMPT - 1]["first"]
    assert told[0].details[2]["first"] is None
    for folder in (run / "best" / told[0].name, told[0].folder / told[0].name):
        told[0].exported()
        assert "by a second judge" in (folder / "README.md").read_text()
        assert json.loads((folder / "verdict.json").read_text())["confirmed"] is True


@pytest.fixture
def refused_later(tmp_path):
    """A run that was broken off before the second verdicts, with its kept folder and an export; and how it goes on."""
    run = tmp_path / "run"
    with writing(run, passed(2.0, spread=0.0)) as writer:
        writer.flush()
        write_best(writer.log, "one")
        kept.write_best(tmp_path / "out", outcomes_of(run))
        writer.put(Confirmed(problem="one", attempt=1, verdict=failed()))
        writer.flush()
        yield writer.log


def test_a_kept_and_an_exported_folder_go_away_once_their_kernel_is_refused(refused_later, tmp_path):
    assert best_folder(refused_later, "one").exists()
    assert write_best(refused_later, "one") is None
    assert not (refused_later.folder / "best").exists()
    assert kept.write_best(tmp_path / "out", outcomes_of(refused_later.folder)) == []
    assert not (tmp_path / "out/one").exists()


def test_what_others_put_into_a_kept_folder_stays(refused_later):
    folder = best_folder(refused_later, "one")
    (folder / "notes.txt").write_text("mine")
    write_best(refused_later, "one")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_folder_of_another_kernel_is_left_alone(refused_later, tmp_path):
    (tmp_path / "out/one/candidate.py").write_text("# of another run\n")
    kept.write_best(tmp_path / "out", outcomes_of(refused_later.folder))
    assert (tmp_path / "out/one/candidate.py").exists()
