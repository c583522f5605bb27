"""Verdicts are kept once and merged; runs and scores are read and summarized alike."""

import hashlib
import sqlite3

import pytest

from kernelwright.agent.log.events import Confirmed, RunLogError
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.inspector.live import LiveRuns
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards
from kernelwright.evals.metrics import COPY
from kernelwright.evals.tables import CELL_COLUMNS, FORMATS, ROW_COLUMNS
from kernelwright.evals.verdict_store import DERIVED, JudgementsError, VerdictStore, log_of, run_summary, summaries
from kernelwright.sandbox.pool.executor import Conditions
from tests.support.runs import REFERENCE, ended, failed, judgement, made_run, passed, problem, scored, writing


@pytest.fixture
def store(tmp_path):
    with VerdictStore(tmp_path / "scores.db") as store:
        yield store


def test_what_is_kept_of_a_verdict_is_what_the_judge_reported(store):
    one = judgement("a", passed(1.5))
    assert store.add(one) == store.known_like(one.problem_digest, one.candidate_digest, [one.conditions])
    assert store.add(one)[0]["speedup"] == one.verdict.measurement.speedup


def test_the_first_judgement_of_a_key_stays(store):
    first, second = judgement("a", passed(1.5)), judgement("a", failed())
    for one in (first, second):
        store.add(one)
    assert [found.verdict for found in store.read(store.path)] == [first.verdict]


@pytest.mark.parametrize(
    "change", [{"judge_version": "0"}, {"device": "other"}, {"torch": "other"}, {"settings": "[]"}]
)
def test_other_conditions_make_another_key(change):
    one = judgement("a", failed())
    other = one.model_copy(update={"conditions": Conditions(**one.conditions.model_dump() | change)})
    assert other.key != one.key


def test_stores_are_merged_without_doubles(store, tmp_path):
    with VerdictStore(tmp_path / "other.db") as other:
        for name in ("a", "b"):
            other.add(judgement(name, failed()))
    store.add(judgement("a", failed()))
    assert store.merge([tmp_path / "other.db"]) == 1
    assert [one.candidate for one in store.read(store.path)] == ["a", "b"]


def test_a_file_that_is_no_store_is_told(tmp_path):
    (tmp_path / "scores.db").write_text("no database at all, but some text that is long enough")
    with pytest.raises(JudgementsError, match="cannot use"):
        VerdictStore(tmp_path / "scores.db")


def test_conditions_of_an_older_release_are_read_with_the_digest_that_they_have():
    old = '{"harness":"0123456789abcdef","device":"d","torch":"2","settings":"{}"}'
    found = Conditions.model_validate_json(old)
    assert found.judge_version == "0123456789abcdef"
    assert found.digest == hashlib.sha256(old.encode()).hexdigest(), "the keys of stored records stay as they are"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "run", problems=3, attempts=25)


@pytest.fixture(scope="module")
def views(run):
    with RunLog.open(run) as log:
        return {name: fold(name, log.events(name)) for name in log.header.problems}


def test_counts_the_best_and_what_was_spent_are_those_of_the_folded_log(run, views):
    for facts in run_summary(run).problems:
        attempts, best = views[facts.problem].attempts, views[facts.problem].best
        assert facts.attempts == sum(attempt.finished for attempt in attempts)
        assert facts.passed == sum(attempt.passed for attempt in attempts)
        assert (facts.best.attempt, facts.best.candidate_digest) == (str(best.number), best.candidate.digest)
        assert facts.best.measured.speedup == best.speedup
        usages = [attempt.reply.usage for attempt in attempts]
        assert facts.cost_usd == pytest.approx(sum(usage.cost_usd for usage in usages))
        assert facts.tokens == sum(usage.input_tokens + usage.output_tokens for usage in usages)


def test_the_effort_to_the_first_correct_and_to_the_best_is_counted(tmp_path):
    (facts,) = run_summary(ended(tmp_path / "run", failed(), None, passed(1.2), failed(), passed(2.0))).problems
    assert (facts.first_correct.attempts, facts.first_correct.cost_usd) == (3, pytest.approx(0.03))
    assert (facts.to_best.attempts, facts.to_best.cost_usd) == (5, pytest.approx(0.05))


def test_an_unknown_cost_stays_unknown(tmp_path):
    with writing(tmp_path / "run") as writer:
        writer.attempt(passed(1.2), cost=None)
    (facts,) = run_summary(tmp_path / "run").problems
    assert facts.cost_usd is None and facts.first_correct.cost_usd is None


@pytest.mark.parametrize("told", [0, 1])
def test_a_best_that_the_log_does_not_name_is_found(tmp_path, told):
    with writing(tmp_path / "run", passed(1.5), passed(3.0), passed(1.3)) as writer:
        lost = [event for event in writer.events if event[1] == "kept"][told:]
        writer.events = [event for event in writer.events if event not in lost]
    assert lost and run_summary(tmp_path / "run").problems[0].best.attempt == "2"


def test_a_second_verdict_decides_which_attempt_is_the_best(tmp_path):
    with writing(tmp_path / "run", passed(2.0, spread=0.0), passed(3.0, spread=0.0)) as writer:
        writer.put(Confirmed(problem="one", attempt=2, verdict=passed(1.5, spread=0.0)))
        writer.flush()
        view = fold("one", writer.log.events("one"))
    (facts,) = run_summary(tmp_path / "run").problems
    assert facts.best.attempt == str(view.best.number) == "1"


def test_what_was_kept_beside_the_run_gives_the_same_facts(run):
    (run / DERIVED).unlink(missing_ok=True)
    first = run_summary(run)
    assert (run / DERIVED).exists()
    assert run_summary(run) == first


def test_facts_follow_a_run_that_goes_on(tmp_path):
    with writing(tmp_path / "run", passed(1.2)) as writer:
        writer.flush()
        assert run_summary(tmp_path / "run").problems[0].attempts == 1
        writer.attempt(passed(1.4))
    assert run_summary(tmp_path / "run").problems[0].attempts == 2


def test_kept_facts_of_another_harness_are_read_afresh(tmp_path):
    folder = ended(tmp_path / "run", passed(1.2))
    run_summary(folder)
    kept = (folder / DERIVED).read_text()
    forged = kept.replace('"passed":1', '"passed":7')
    (folder / DERIVED).write_text(forged.replace('"judge_version":"', '"judge_version":"x', 1))
    assert run_summary(folder).problems[0].passed == 1


def test_a_folder_of_runs_gives_each_and_a_damaged_one_can_be_left_out(tmp_path):
    for name in ("a", "b"):
        ended(tmp_path / name, passed(1.2))
    assert [facts.run for facts in summaries([tmp_path])] == ["a", "b"]
    (tmp_path / "a" / "header.json").write_text("{")
    told = []
    assert [facts.run for facts in summaries([tmp_path], told.append)] == ["b"]
    assert len(told) == 1 and str(tmp_path / "a") in str(told[0])
    with pytest.raises(RunLogError):
        list(summaries([tmp_path]))


VERDICTS = failed("build"), passed(1.5), passed(3.0), failed("check")


def test_the_facts_of_a_score_are_those_of_a_run_with_the_same_verdicts_but_for_cost(tmp_path):
    (score,) = summaries([scored(tmp_path / "a", *VERDICTS)])
    (ours,), (theirs,) = score.problems, run_summary(ended(tmp_path / "b", *VERDICTS)).problems
    unknown = {"cost_usd", "tokens", "first_correct", "to_best", "best"}
    assert ours.model_dump(exclude=unknown) == theirs.model_dump(exclude=unknown)
    assert (ours.best.attempt, ours.best.measured) == (theirs.best.attempt, theirs.best.measured)
    assert (ours.cost_usd, ours.to_best.attempts) == (None, theirs.to_best.attempts)


def test_a_folder_of_runs_and_scores_is_one_board_in_every_format(tmp_path):
    scored(tmp_path / "all/mine", passed(2.0))
    ended(tmp_path / "all/run", passed(1.5))
    (board,) = found = boards(summaries([tmp_path / "all"]), "h1")
    assert [(row.model, row.cost_usd) for row in board.rows] == [("mine", None), ("model-a", 0.01)]
    assert all("mine" in write(found) for write in FORMATS.values())


def test_what_was_judged_with_most_effort_counts_and_each_device_has_a_board(tmp_path):
    for verdict, device in ((passed(2.0), "a"), (passed(4.0, effort="screen"), "a"), (passed(3.0), "b")):
        scored(tmp_path / "mine", verdict, source="x = 1", device=device)
    found = {facts.device: facts.problems[0] for facts in summaries([tmp_path / "mine"])}
    assert {device: round(one.best.measured.speedup) for device, one in found.items()} == {"a": 2, "b": 3}
    assert [one.attempts for one in found.values()] == [1, 1]


def test_verdicts_of_a_release_that_kept_no_sources_are_told_and_not_lost(tmp_path):
    folder = scored(tmp_path / "mine", passed(2.0))
    with sqlite3.connect(folder / "scores.db") as store:
        store.execute("DROP TABLE texts")
    with pytest.raises(RunLogError, match="source was kept"):
        list(summaries([folder]))
    scored(folder, passed(2.0))
    assert [facts.problems[0].passed for facts in summaries([folder])] == [1]


def test_the_inspector_shows_each_candidate_with_verdict_and_source_and_what_came_since(tmp_path):
    runs = LiveRuns([scored(tmp_path / "mine", failed("check"))])
    before, first = runs.last_event("mine"), runs.model("mine").detail("one", 1)
    scored(tmp_path / "mine", failed("check"), passed(2.0))
    assert runs.last_event("mine") > before
    second = runs.model("mine").detail("one", 2)
    assert (first["outcome"], second["outcome"], second["how"]) == ("failed", "passed", "the file one/2.py")
    assert "attempt 2" in second["source"]
    runs.close()


def test_a_board_counts_kernels_of_one_s_own_and_marks_a_copy_of_the_reference(tmp_path):
    copy = REFERENCE.replace("class Model(", "class ModelNew(")
    for name, label, source in (("a", "mixed", copy), ("b", "library_only", "x = 1"), ("c", "library_only", copy)):
        scored(tmp_path / "mine", passed(2.0, label=label), of=problem(name), source=source)
    (board,) = boards(summaries([tmp_path / "mine"]), "h1")
    assert ROW_COLUMNS["own kernels"](board.rows[0], board) == f"{board.rows[0].own_kernels}/3" == "1/3"
    with log_of(tmp_path / "mine") as log:
        shown = [one["attempts"][0]["auth"] for one in RunModel(log).index()["problems"]]
    assert shown == [CELL_COLUMNS["kernel"](cell) for cell in board.rows[0].cells] == ["mixed", "library_only", COPY]
