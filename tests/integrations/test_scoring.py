"""Completions judged for real, and what they earn; cheats earn nothing."""

import asyncio
import os
import signal
import threading

import pytest

from kernelwright.integrations.reward import RewardTerms
from kernelwright.integrations.scoring import CompletionScorer, training_problem
from kernelwright.problems import ProblemError, load_problem
from tests.hostile.cheats.corpus import CHEATS
from tests.hostile.cheats.problems import posed as posed_for_cheats
from tests.support.replies import HIDDEN_BUILD, LIBRARY, OWN, REFERENCE, SETTINGS, WRONG, posed, reply

pytestmark = pytest.mark.slow

CHEATING = (
    "the first call answers for all (product)",
    "a thread that finishes later (weighted)",
    "the clock is replaced and nothing computed (weighted)",
    "leaving with code 0 (weighted)",
    "a kernel for show (product, own kernels only)",
    "a failing kernel behind a fallback (product, own kernels only)",
)


@pytest.fixture(scope="module")
def scorer():
    with CompletionScorer(settings=SETTINGS, load=posed) as found:
        yield found


def test_an_answer_with_its_reasoning_earns_what_its_kernel_is_worth_and_equal_ones_are_judged_once(scorer):
    found, same, other = scorer.score(["scaled"] * 3, [reply(OWN), OWN, "nothing"])
    assert found.report["outcome"] == "passed", found.words
    assert found.reward.value > 0
    assert found.source.startswith("import ctypes")
    assert "speedup against eager" in found.words
    assert found.report is same.report and other.report is None


def test_a_conversation_is_judged_by_its_last_answer(scorer):
    talk = [
        {"role": "assistant", "content": reply(OWN)},
        {"role": "user", "content": "Faster."},
        {"role": "assistant", "content": [{"type": "text", "text": reply(WRONG)}]},
    ]
    (found,) = scorer.score(["scaled"], [talk])
    assert found.report["stage"] == "check", found.words
    assert found.reward.value == 0


def test_replies_without_a_candidate_earn_nothing_and_say_why(scorer):
    found = scorer.score(["scaled"] * 3, ["I can not.", "```python\nclass ModelNew(:\n```", []])
    assert [(one.reward.value, one.source) for one in found] == [(0, None)] * 3
    assert "syntax_error" in found[1].reward.why


def test_the_library_and_a_build_that_fails_unseen_earn_nothing_with_and_without_a_policy(scorer):
    strict, free, hidden = scorer.score(["scaled", "any", "any"], [LIBRARY, LIBRARY, HIDDEN_BUILD])
    assert strict.report["stage"] == "check"
    assert free.report["outcome"] == hidden.report["outcome"] == "passed", hidden.words
    assert [one.reward.value for one in (strict, free, hidden)] == [0, 0, 0]
    assert free.reward.flags == ("no_own_kernel",)
    assert hidden.reward.flags == ("no_own_kernel", "hidden_build")
    assert "failed and was hidden" in hidden.words


def test_a_problem_that_is_none_is_said_at_once():
    with CompletionScorer(settings=SETTINGS) as scorer, pytest.raises(ProblemError, match="rms_nrm"):
        scorer.score(["rms_nrm"], [OWN])


WRONGLY_GIVEN = {
    "fewer problems than completions": (["scaled"], [OWN, OWN], "problems has 1 entries and completions 2; give one"),
    "a problem without its list": ("scaled", [OWN], "problems is 'scaled'; give a list"),
    "a completion without its list": (["scaled"], OWN, "completions is '.*; give a list"),
    "a number as problem": (["scaled", 3], [OWN, OWN], r"problems\[1\] is 3; give a catalog name"),
    "no completion": (["scaled"] * 2, [OWN, None], r"completions\[1\] is None; give a text, or the messages"),
    "one message": (["scaled"], [{"role": "assistant"}], r"completions\[0\] is .*; give a text, or the messages"),
}


@pytest.mark.parametrize("name", WRONGLY_GIVEN)
def test_what_is_given_wrongly_is_told_before_anything_is_judged(name):
    problems, completions, said = WRONGLY_GIVEN[name]
    with CompletionScorer(settings=SETTINGS, load=posed) as scorer:
        with pytest.raises(ValueError, match=f"^{said}"):
            scorer.score(problems, completions)
        assert scorer._pool is None


def test_a_problem_may_be_a_path_or_the_problem_itself(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REFERENCE)
    with CompletionScorer(settings=SETTINGS) as scorer:
        found = scorer.score([path, str(path), posed("scaled")], [WRONG] * 3)
        assert scorer.problem(path) is scorer.problem(str(path))
        assert scorer.problem(posed("any")).operators == "any"
    assert [one.report["stage"] for one in found] == ["check"] * 3
    assert found[0].report is found[1].report
    assert training_problem(path).operators == "custom-only"


def test_a_reply_that_names_a_file_is_an_answer_without_a_candidate(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with CompletionScorer(settings=SETTINGS, load=posed) as scorer:
        (found,) = scorer.score(["scaled"], ["mine.py"])
    assert found.reward.value == 0


def test_a_program_with_a_loop_of_its_own_asks_in_it(scorer):
    (found,) = asyncio.run(scorer.score_async(["scaled"], [WRONG]))
    assert found.reward.value == 0


def test_a_judge_that_was_ended_is_started_anew():
    with CompletionScorer(settings=SETTINGS, load=posed) as scorer:
        scorer.score(["scaled"], [WRONG])
        for pid in scorer._pool._dispatcher.executor.pids.values():
            os.kill(pid, signal.SIGKILL)
        (found,) = scorer.score(["scaled"], [WRONG])
    assert found.report["stage"] == "check"


@pytest.fixture(scope="module")
def generous():
    """Terms that pay for everything right, so that the judge alone refuses a cheat."""
    terms = RewardTerms(paid="all")
    with CompletionScorer(settings=SETTINGS, terms=terms, load=lambda name: posed_for_cheats(name).problem) as found:
        yield found


@pytest.mark.parametrize("name", CHEATING)
def test_a_cheat_earns_nothing(generous, name):
    cheat = CHEATS[name]
    (found,) = generous.score([cheat.problem], [reply(cheat.candidate.source)])
    assert found.reward.value == 0, found.words


def test_problems_are_trained_on_under_own_kernels_only():
    assert load_problem("rms_norm").operators == "any"
    assert training_problem("rms_norm").operators == "custom-only"
    assert (training_problem("rms_norm", "cuda").size, training_problem("rms_norm").size) == ("gpu", "cpu")


def test_threads_that_ask_at_once_share_one_judge():
    fresh, loops = CompletionScorer(settings=SETTINGS, load=posed), set()

    def ask():
        fresh.score(["scaled"], ["no code"])
        loops.add(fresh._loop)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fresh.close()
    assert len(loops) == 1
