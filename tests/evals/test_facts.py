"""The facts of a run are those of the folded log, and are kept beside it as long as they hold."""

import pytest

from kernelwright.agent.log.events import Confirmed, RunLogError
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.verdict_store import DERIVED, run_summary, summaries
from tests.support.runs import ended, failed, made_run, passed, writing


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
