"""What PyTorch takes is measured once, before the first ask; every prompt says what the log says, for good."""

import asyncio

import pytest

from kernelwright.agent.engine import search
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.replay import replay
from kernelwright.agent.steering import Prices, spent
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, UnsupportedProblem
from tests.agent.engine.test_steps import PLAN
from tests.agent.test_briefs import measured_as
from tests.support.search import CONFIG, PROBLEM, ReadingEvaluator, Scripted, failed, parts_of, reply_with, searched

TIMES = {"eager": 5.55, "eager_as_shipped": 2.34, "torch.compile_default": 1.9}
BRIEF = CONFIG.model_copy(update={"attempts": 3})


class Measuring(ReadingEvaluator):
    """Has one answer to what PyTorch takes, and counts how often it was asked."""

    def __init__(self, answer, **others):
        super().__init__(**others)
        self.answer, self.asked = answer, 0

    async def measure(self, problem):
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def finding(**baselines_ms):
    return Measuring(measured_as(**baselines_ms).verdict)


def events(log, kind):
    return [event.body for event in log.events() if event.kind == kind]


def sections(log, *names):
    """Of each prompt that was sent, these sections; a repair has none of them."""
    prompts = [log.prompt(asked.prompt) for asked in events(log, "asked") if asked.ask.role != "repair"]
    return [{one.name: one.text for one in prompt.sections if one.name in names} for prompt in prompts]


def test_every_prompt_says_what_the_log_says_before_and_after_a_resume(log, tmp_path):
    searched(log, evaluator=finding(**TIMES), config=BRIEF)
    later = finding(eager=99.0)
    with RunLog.open(log.folder) as again:
        searched(again, evaluator=later)
    (measured,) = events(log, "measured")
    found = measured.verdict.measurement
    assert found.baselines_ms == {name.replace("_", " "): ms for name, ms in TIMES.items()}
    shown = sections(log, "times", "floor")
    assert len(shown) == CONFIG.attempts - 2
    for told in shown:
        lines = [line for line in told["times"].splitlines() if line.startswith("- ") and "nothing" not in line]
        wanted = [f"{name}: {ms:#.3g}" for name, ms in sorted(found.baselines_ms.items(), key=lambda one: one[1])]
        assert [line.removeprefix("- ").partition(" ms")[0] for line in lines] == wanted
        assert f"each once: {found.floor.memory_ms:#.3g} ms" in told["floor"]
        assert f"as many bytes: {found.floor.copy_ms:#.3g} ms" in told["floor"]
    assert shown == [shown[0]] * len(shown)
    assert later.asked == 0
    assert replay(log, tmp_path / "again").digest == log.digest()


def test_it_is_measured_before_the_first_ask_and_its_seconds_count_as_judging(log):
    verdict = measured_as(**TIMES).verdict
    evidence = verdict.evidence.model_copy(update={"seconds": {"load": 1.5, "time": 1.0}})
    searched(log, evaluator=Measuring(verdict.model_copy(update={"evidence": evidence})))
    assert [event.kind for event in log.events()][:4] == ["run_started", "equipped", "measured", "asked"]
    assert spent(fold(PROBLEM.name, log.events()), Prices()).judge_s == 2.5


def test_prompts_that_ask_for_words_say_it_too(log):
    provider = Scripted({1: PLAN, 2: reply_with("1.5")})
    config = CONFIG.model_copy(update={"attempts": 1, "advisers": ("plan",)})
    searched(log, provider=provider, evaluator=finding(**TIMES), config=config)
    assert [asked.ask.role for asked in events(log, "asked")] == ["plan", "propose"]
    plan, draft = sections(log, "times", "floor")
    assert plan == draft
    assert plan.keys() == {"times", "floor"}


def test_nobody_is_asked_about_a_broken_problem_until_it_can_be_measured(log):
    with pytest.raises(BrokenProblem, match="its inputs"):
        searched(log, evaluator=Measuring(BrokenProblem("its inputs cannot be drawn")))
    assert [event.kind for event in log.events()] == ["run_started", "equipped", "stopped"]
    searched(log, evaluator=finding(**TIMES))
    assert [event.kind for event in log.events()][3:5] == ["measured", "asked"]


@pytest.mark.parametrize("error", [UnsupportedProblem("too large"), MachineError("no device")])
def test_what_can_not_be_measured_is_told_in_the_log_and_the_search_goes_on_without(log, tmp_path, error):
    evaluator = Measuring(error)
    searched(log, evaluator=evaluator, config=BRIEF)
    searched(log, evaluator=evaluator)
    (measured,) = events(log, "measured")
    assert (measured.verdict, measured.why_not, evaluator.asked) == (None, str(error), 1)
    assert not any(sections(log, "times", "floor"))
    assert replay(log, tmp_path / "again").digest == log.digest()


def test_a_reference_that_its_own_judge_refuses_gives_no_times(log):
    searched(log, evaluator=Measuring(failed("run")))
    assert events(log, "measured")[0].verdict == failed("run")
    assert not any(sections(log, "times", "floor"))


def test_a_search_that_was_begun_without_goes_on_without_and_replays(log, tmp_path):
    """As those do whose log is older than the event."""
    searched(log, config=BRIEF)
    later = finding(**TIMES)
    searched(log, evaluator=later)
    assert (later.asked, events(log, "measured")) == (0, [])
    assert replay(log, tmp_path / "again").digest == log.digest()


def test_a_search_that_ended_while_it_was_measured_measures_when_it_begins_again(log):
    class Endless(ReadingEvaluator):
        async def measure(self, problem):
            await asyncio.sleep(3600)

    async def cut_short():
        task = asyncio.create_task(search(PROBLEM, parts_of(log, evaluator=Endless())))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cut_short())
    assert [event.kind for event in log.events()] == ["run_started", "equipped"]
    searched(log, evaluator=finding(**TIMES))
    assert len(events(log, "measured")) == 1


def test_it_can_be_switched_off(log):
    evaluator = finding(**TIMES)
    searched(log, evaluator=evaluator, config=CONFIG.model_copy(update={"measure": False}))
    assert (evaluator.asked, events(log, "measured")) == (0, [])


def test_either_section_can_be_left_out(log):
    config = CONFIG.model_copy(update={"without": ("times",)})
    searched(log, evaluator=finding(**TIMES), config=config)
    assert {frozenset(one) for one in sections(log, "times", "floor")} == {frozenset({"floor"})}
