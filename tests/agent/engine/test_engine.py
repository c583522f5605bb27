import asyncio
import gc
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.agent.engine import Parts, search
from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import AnswerPending, NoMoreAnswers, ProviderError
from kernelwright.agent.strategies import Step, Stop, StrategyError
from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.errors import MachineError
from tests.support.search import (
    ANSWERS,
    CONFIG,
    PROBLEM,
    STORY,
    ReadingEvaluator,
    Scripted,
    new_log,
    outline,
    parts_of,
    reply_with,
    searched,
)


def test_a_search_repairs_what_failed_improves_the_best_and_ends_with_its_reason(log):
    evaluator = ReadingEvaluator()
    view = searched(log, evaluator=evaluator)
    assert outline(view) == STORY
    assert (view.best.number, view.best.speedup) == (5, pytest.approx(2.0))
    kept = [(event.attempt, event.body.previous) for event in log.events() if event.kind == "kept"]
    assert kept == [(2, None), (4, 2), (5, 4)], "each new best is kept once"
    assert "budget of 7 attempts" in list(log.events())[-1].body.reason
    assert view.attempt(6).same_as == 5
    assert max(evaluator.judged.values()) == 1, "a source that was judged before is not judged again"


def test_each_ask_is_committed_before_the_provider_hears_of_it(log):
    class Looking(Scripted):
        async def complete(self, request, ask, prompt):
            assert fold(PROBLEM.name, log.events()).attempt(ask.attempt).request_digest == request.digest
            return await super().complete(request, ask, prompt)

    assert len(searched(log, provider=Looking()).attempts) == 7


def test_the_prompts_that_were_sent_and_the_replies_that_came_are_in_the_log(log):
    provider = Scripted()
    view = searched(log, provider=provider)
    assert [log.prompt(attempt.prompt).text for attempt in view.attempts] == [one.prompt for one in provider.requests]
    assert {one.number: log.reply(one.reply_digest).text for one in view.attempts} == ANSWERS
    first = view.attempts[0].prompt
    prompt = log.prompt(first)
    assert (prompt.digest, prompt.stable_digest) == (first.digest, first.stable_digest), "it comes back in its sections"


def test_a_repair_prompt_says_why_a_reply_held_no_candidate(log):
    provider = Scripted({1: "```python\nclass ModelNew(:\n```", 2: reply_with("1.2")})
    view = searched(log, provider=provider, config=CONFIG.model_copy(update={"drafts": 1, "attempts": 2}))
    assert "syntax_error" in view.attempts[0].outcome
    assert view.attempts[0].detail in provider.requests[1].prompt


def test_the_same_source_in_two_slots_at_once_is_judged_once(log):
    evaluator = ReadingEvaluator()
    config = CONFIG.model_copy(update={"slots": 2, "attempts": 2})
    searched(log, provider=Scripted({1: reply_with("2.0"), 2: reply_with("2.0")}), evaluator=evaluator, config=config)
    assert list(evaluator.judged.values()) == [1]


def test_as_many_asks_as_slots_are_in_flight(log):
    provider = Scripted({number: reply_with(f"1.{number}") for number in range(1, 8)})
    view = searched(log, provider=provider, config=CONFIG.model_copy(update={"slots": 3, "drafts": 3}))
    assert provider.most_at_once == 3
    assert len(view.attempts) == 7


def test_two_fresh_searches_send_the_same_requests(tmp_path):
    def requests(name):
        with new_log(tmp_path / name) as log:
            return [attempt.request_digest for attempt in searched(log).attempts]

    assert requests("one") == requests("two")


def test_events_are_told_in_the_order_of_the_log(log):
    seen = []
    searched(log, on_event=seen.append)
    assert seen == list(log.events(PROBLEM.name))


EVENTS_OF_A_WHOLE_SEARCH = 36


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("engine") / "whole") as log:
        yield log, searched(log)


@pytest.mark.parametrize("count", range(1, EVENTS_OF_A_WHOLE_SEARCH + 1))
def test_a_search_cut_off_after_any_event_goes_on_to_the_same_end(tmp_path, whole, count):
    log, view = whole
    events = list(log.events())
    assert len(events) == EVENTS_OF_A_WHOLE_SEARCH
    with new_log(tmp_path / "cut") as cut:
        for event in events[1:count]:
            cut.append(event.body, blobs=blobs_of(log, event))
        before = fold(PROBLEM.name, cut.events())
        provider, evaluator = Scripted(), ReadingEvaluator()
        after = searched(cut, provider=provider, evaluator=evaluator)
    assert [attempt.ask for attempt in after.attempts] == [attempt.ask for attempt in view.attempts]
    assert outline(after) == STORY
    assert after.kept == view.kept
    answered_before = {one.number for one in before.attempts if one.reply}
    assert set(provider.answered) == {one.number for one in after.attempts} - answered_before
    judged_before = {one.candidate.digest for one in before.attempts if one.verdict and one.candidate}
    assert not judged_before & set(evaluator.judged)


def blobs_of(log, event):
    match event.kind, event.body:
        case "asked", body:
            return [section.text for section in log.prompt(body.prompt).sections]
        case "replied", body:
            return [log.text(body.reply_digest)]
        case "extracted", body:
            return [log.text(body.candidate.digest)]
    return []


def test_a_finished_search_adds_nothing_when_started_again_and_goes_on_where_the_budget_is_raised(log):
    short = CONFIG.model_copy(update={"attempts": 3})
    searched(log, config=short)
    before = list(log.events())
    searched(log, provider=Scripted({}), config=short)
    assert list(log.events()) == before
    assert outline(searched(log)) == STORY
    assert [event.kind for event in log.events()].count("resumed") == 1


@pytest.mark.parametrize("attempt", ANSWERS)
def test_a_provider_that_breaks_at_any_attempt_ends_the_search_and_loses_nothing(log, attempt):
    broken = Scripted(errors={attempt: [ProviderError("the key was refused; check it")]})
    with pytest.raises(ProviderError, match="key was refused"):
        searched(log, provider=broken)
    view = fold(PROBLEM.name, log.events())
    assert "key was refused" in view.stopped
    assert [one.number for one in view.pending] == [attempt]
    again = Scripted()
    assert outline(searched(log, provider=again)) == STORY
    assert max((broken.answered + again.answered).values()) == 1
    assert again.requests[0] == broken.requests[-1], "what is pending is asked again word for word"


def test_a_passing_failure_is_logged_and_tried_again(log):
    passing = [ProviderError("asked too often; wait", retryable=True) for _ in range(2)]
    view = searched(log, provider=Scripted(errors={1: passing}))
    assert outline(view) == STORY
    assert view.attempt(1).provider_failures == 2


def test_a_failure_that_does_not_pass_ends_the_search_after_the_retries(log):
    passing = [ProviderError("asked too often; wait", retryable=True) for _ in range(9)]
    with pytest.raises(ProviderError):
        searched(log, provider=Scripted(errors={1: passing}))
    assert [event.kind for event in log.events()].count("provider_failed") == 1 + CONFIG.provider_retries


def test_trouble_in_one_slot_lets_the_other_finish(log):
    broken = Scripted(errors={1: [ProviderError("the key was refused; check it")]})
    with pytest.raises(ProviderError):
        searched(log, provider=broken, config=CONFIG.model_copy(update={"slots": 2}))
    assert fold(PROBLEM.name, log.events()).attempt(2).passed


def test_a_provider_without_more_answers_is_an_ordinary_end(log):
    view = searched(log, provider=Scripted(errors={3: [NoMoreAnswers()]}))
    assert "recorded answers" in view.stopped
    assert view.best.number == 2


def test_a_broken_machine_leaves_the_candidate_to_be_judged_later(log):
    class Broken(ReadingEvaluator):
        async def evaluate(self, problem, candidate, **asked):
            raise MachineError("there is no compiler; install g++")

    with pytest.raises(MachineError):
        searched(log, evaluator=Broken())
    assert fold(PROBLEM.name, log.events()).attempt(1).outcome == "not judged yet"
    provider = Scripted()
    assert outline(searched(log, provider=provider)) == STORY
    assert 1 not in provider.answered


def test_a_cancelled_search_can_go_on(log):
    class Hanging(ReadingEvaluator):
        async def evaluate(self, problem, candidate, **asked):
            if self.judged:
                await asyncio.sleep(3600)
            return await super().evaluate(problem, candidate, **asked)

    async def cancelled():
        task = asyncio.create_task(search(PROBLEM, parts_of(log, evaluator=Hanging())))
        while len(fold(PROBLEM.name, log.events()).attempts) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert outline(searched(log)) == STORY


KILLED = """
import asyncio, signal, sys
from pathlib import Path
from tests.support.search import Scripted, new_log, searched

class Slow(Scripted):
    async def complete(self, request, ask, prompt):
        print(ask.attempt, flush=True)
        await asyncio.sleep(3600 if ask.attempt == 4 else 0)
        return await super().complete(request, ask, prompt)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
searched(new_log(Path(sys.argv[1])), provider=Slow())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl_c"])
def test_a_process_that_was_ended_in_mid_search_loses_no_answer(tmp_path, how):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, str(folder)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as process:
        asked = [process.stdout.readline().strip() for _ in range(4)]
        process.send_signal(how)
    assert asked == ["1", "2", "3", "4"]
    provider = Scripted()
    with RunLog.open(folder) as log:
        assert outline(searched(log, provider=provider)) == STORY
    assert set(provider.answered) == {4, 5, 6, 7}


def test_a_run_of_another_version_of_the_problem_is_not_gone_on_with(log):
    changed = Problem(**PROBLEM.model_dump() | {"title": "Changed"})
    with pytest.raises(RunLogError, match="start a new run"):
        asyncio.run(search(changed, parts_of(log)))


def fixed(log, proposal):
    """Search with a strategy that always proposes the same."""
    strategy = SimpleNamespace(propose=lambda view, slots, rng: proposal)
    return asyncio.run(search(PROBLEM, Parts(**vars(parts_of(log)) | {"strategy": strategy})))


DRAFT = Step("propose", None, "one simple kernel")


@pytest.mark.parametrize("proposal", [[DRAFT, DRAFT], [Step("repair", 1, "a")]], ids=["too many", "unknown parent"])
def test_a_step_that_breaks_the_rules_is_refused_before_it_is_logged(log, proposal):
    with pytest.raises(StrategyError, match="broke its rules"):
        fixed(log, proposal)
    assert [event.kind for event in log.events()] == ["run_started", "equipped"]


def test_a_strategy_may_stop_at_once_and_may_not_wait_for_nothing(log):
    with pytest.raises(StrategyError, match="nothing is pending"):
        fixed(log, [])
    view = fixed(log, Stop(reason="enough"))
    assert (view.attempts, view.stopped) == ((), "enough")


THREE = CONFIG.model_copy(update={"slots": 3, "drafts": 3, "attempts": 3})


@pytest.mark.parametrize(
    "errors", [[NoMoreAnswers("none"), MachineError("broken")], [AnswerPending("later"), TypeError("bug")]]
)
def test_of_several_troubles_at_once_the_gravest_is_raised(log, errors):
    provider = Scripted(errors={number: [error] for number, error in enumerate(errors, start=1)})
    with pytest.raises(type(errors[-1])):
        searched(log, provider=provider, config=THREE)


def test_errors_in_several_slots_at_once_leave_none_behind_unheard(log, caplog):
    with pytest.raises(ProviderError):
        searched(log, provider=Scripted(errors={number: [ProviderError("down")] for number in (1, 2, 3)}), config=THREE)
    gc.collect()
    assert caplog.records == []


def test_a_search_that_waits_for_answers_has_not_ended(log):
    provider = Scripted(errors={number: [AnswerPending("later")] for number in (1, 2, 3)})
    with pytest.raises(AnswerPending):
        searched(log, provider=provider, config=THREE)
    kinds = {event.kind for event in log.events()}
    assert not kinds & {"stopped", "provider_failed"}
    assert len(fold(PROBLEM.name, log.events()).pending) == 3
