"""A recorded run comes out the same when it is done again without network and judge."""

import sqlite3

import pytest

from kernelwright.agent.log.events import Stopped
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.replay import ReplayDiffers, replay
from tests.agent.engine.test_steps import PLAN, TUNABLE, WHOLE, CutOff, renamed
from tests.support.search import CONFIG, ReadingEvaluator, Scripted, new_log, reply_with, searched

DUPLICATES = {1: reply_with("1.5"), 2: renamed(reply_with("1.5")), 3: reply_with("check"), 4: reply_with("1.6")}
RUNS = {
    "plain": {},
    "several slots": {"config": CONFIG.model_copy(update={"slots": 3})},
    "duplicates": {"provider": Scripted(DUPLICATES), "config": CONFIG.model_copy(update={"attempts": 4})},
    "tuning": {"provider": Scripted({1: TUNABLE, 2: TUNABLE}), "config": CONFIG.model_copy(update={"attempts": 1})},
    "cut off": {"provider": CutOff(WHOLE[:99], WHOLE[99:]), "config": CONFIG.model_copy(update={"attempts": 1})},
    "advice": {
        "provider": Scripted({1: PLAN, 2: reply_with("1.5")}),
        "config": CONFIG.model_copy(update={"attempts": 1, "advisers": ("plan",)}),
    },
    "fresh judge": {"evaluator": ReadingEvaluator(afresh={"2.0": "check"})},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_replay_has_the_digest_of_the_run(tmp_path, name):
    with new_log(tmp_path / "run") as log:
        searched(log, **RUNS[name])
        before = log.digest()
        assert replay(log, tmp_path / "again").digest == before


def test_a_run_that_was_gone_on_with_replays_and_what_only_the_world_can_say_is_taken_as_recorded(tmp_path):
    with new_log(tmp_path / "run") as log:
        searched(log, config=CONFIG.model_copy(update={"attempts": 3}))
        searched(log)
        log.append(Stopped(problem="doubled", reason="the power went out"))
        again = replay(log, tmp_path / "again")
        assert (again.digest, again.events) == (log.digest(), len(list(log.events())))


def test_the_replay_holds_the_same_texts(tmp_path):
    with new_log(tmp_path / "run") as log:
        searched(log)
        replay(log, tmp_path / "again")
        with RunLog.open(tmp_path / "again") as again:
            for digest in texts(tmp_path / "run"):
                assert again.blob(digest) == log.blob(digest)


def texts(folder):
    with sqlite3.connect(folder / "run.db") as connection:
        return [row[0] for row in connection.execute("SELECT sha256 FROM blobs")]


def test_a_decision_that_comes_out_differently_is_told(tmp_path):
    with new_log(tmp_path / "run") as log:
        searched(log, config=CONFIG.model_copy(update={"attempts": 3}))
        with new_log(tmp_path / "other") as other:
            for event in list(log.events())[1:]:
                body = event.body
                if event.kind == "asked" and event.attempt == 2:
                    body = body.model_copy(update={"ask": body.ask.model_copy(update={"idea": "another"})})
                other.append(body, [log.text(digest) for digest in texts(tmp_path / "run")])
            with pytest.raises(ReplayDiffers, match=r"attempt 2 of 'doubled'.* 'ask'"):
                replay(other, tmp_path / "again")
