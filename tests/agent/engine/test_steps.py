"""What happens beside the plain walk from ask to verdict: cut-off replies, duplicates, tuning, advice."""

import pytest

from kernelwright.agent.log.events import Event, JudgedAttempt
from kernelwright.agent.log.view import fold
from tests.support.search import CONFIG, PROBLEM, ReadingEvaluator, Scripted, passed, reply_with, searched


def config(**changes):
    return CONFIG.model_copy(update={"drafts": 1, "attempts": 1, **changes})


class CutOff(Scripted):
    """Answers in pieces, all but the last cut off."""

    def __init__(self, *pieces):
        super().__init__({})
        self.pieces = list(pieces)

    async def complete(self, request, ask, prompt):
        self.answers[ask.attempt] = self.pieces.pop(0)
        reply = await super().complete(request, ask, prompt)
        return reply.model_copy(update={"finish_reason": "length" if self.pieces else "stop"})


WHOLE = reply_with("1.5")


@pytest.mark.parametrize("at", range(60, len(WHOLE) - 5, 9))
def test_a_reply_that_was_cut_off_is_shown_and_continued_and_the_tokens_of_both_count(log, at):
    provider = CutOff(WHOLE[:at], WHOLE[at:])
    attempt = searched(log, provider=provider, config=config()).attempt(1)
    assert attempt.passed
    first, second = (request.prompt for request in provider.requests)
    assert second.startswith(first.rstrip("\n"))
    assert WHOLE[:at].splitlines()[-1] in second
    assert [reply.usage.output_tokens for reply in attempt.replies] == [7, 7]


def test_a_shorter_answer_in_place_of_the_rest_is_taken(log):
    provider = CutOff(WHOLE[:100], reply_with("1.7"))
    assert searched(log, provider=provider, config=config()).best.speedup == pytest.approx(1.7)


def test_a_reply_is_continued_once(log):
    provider = CutOff(WHOLE[:80], WHOLE[80:100], WHOLE[100:])
    view = searched(log, provider=provider, config=config())
    assert view.attempt(1).outcome == "no candidate (truncated)"
    assert len(provider.requests) == 2


def renamed(reply):
    commented = reply.replace("KIND = ", "# another comment\nKIND   =   ")
    return commented.replace("    pass", '    """New words."""\n    pass')


def test_a_program_that_differs_in_comments_and_layout_is_not_judged_again_and_the_model_is_told(log):
    evaluator = ReadingEvaluator()
    provider = Scripted({1: reply_with("1.5"), 2: renamed(reply_with("1.5")), 3: reply_with("1.6")})
    view = searched(log, provider=provider, evaluator=evaluator, config=config(attempts=3))
    assert view.attempt(2).same_as == 1
    assert evaluator.judged.total() == 2
    assert "the source of attempt 1" in provider.requests[2].prompt


def longer(judgement, *lines):
    return reply_with(judgement).replace("    pass", "\n".join(f"    {line}" for line in lines))


def test_the_model_is_told_of_a_change_that_came_again(log):
    change = [f"{name} = 1" for name in "abcdefgh"]
    answers = {1: longer("1.5", "pass"), 2: longer("1.2", *change), 3: longer("1.25", *change, "pass")}
    provider = Scripted(answers | {4: longer("1.6", "d = 4")})
    searched(log, provider=provider, config=config(attempts=4))
    assert "what attempt 2 changed" in provider.requests[3].prompt


TUNABLE = """\
```python
import torch

SPEED = 1.5
# tune: SPEED in (1.2, 1.5, 2.5, 3.5)


class ModelNew(torch.nn.Module):
    pass
```
"""


def test_declared_constants_are_tried_but_for_those_that_a_quick_look_shows_to_be_slower(log):
    evaluator = ReadingEvaluator()
    view = searched(log, provider=Scripted({1: TUNABLE}), evaluator=evaluator, config=config())
    best = view.best
    assert (best.ask.role, best.ask.directive, best.speedup) == ("tune", "SPEED = 3.5", pytest.approx(3.5))
    assert evaluator.screened == ["1.5", "1.2", "2.5", "3.5"]
    assert "SPEED = 1.2" not in [attempt.ask.directive for attempt in view.attempts]


def test_tuning_asks_nobody_and_costs_no_attempt(log):
    provider = Scripted({1: TUNABLE, 4: reply_with("1.1")})
    view = searched(log, provider=provider, config=config(attempts=2))
    assert view.spent == 2
    assert len(provider.requests) == 2


def test_tuning_can_be_switched_off(log):
    view = searched(log, provider=Scripted({1: TUNABLE}), config=config(tune=0))
    assert [attempt.ask.role for attempt in view.attempts] == ["propose"]


def test_the_fastest_are_judged_afresh_before_the_best_is_named(log):
    evaluator = ReadingEvaluator(afresh={"2.0": "1.4", "1.9": "1.9"})
    view = searched(log, evaluator=evaluator)
    assert (view.best.number, view.kept, view.best.standing) == (7, 7, pytest.approx(1.9))


def test_what_is_told_of_an_attempt_is_told_by_its_second_verdict(log):
    """Also of one with the same source, before and after; and a refused one is not the best."""
    view = searched(log, evaluator=ReadingEvaluator(afresh={"2.0": "check", "1.9": "1.4"}))
    refused, same, slower = view.attempt(5), view.attempt(6), view.attempt(7)
    assert (refused.outcome, refused.speedup, refused.detail) == ("failed at check", None, "went wrong at check")
    assert (same.same_as, same.outcome) == (5, "failed at check")
    assert (slower.speedup, slower.standing) == (pytest.approx(1.4), pytest.approx(1.4))
    assert view.best.number == 4
    again = JudgedAttempt(problem=PROBLEM.name, attempt=7, verdict=passed(2.0), same_as=5)
    late = view.after(Event(seq=999, time=view.last_event, body=again))
    assert late.attempt(7).outcome == "failed at check"


def test_a_lone_right_candidate_is_not_judged_afresh(log):
    evaluator = ReadingEvaluator()
    searched(log, provider=Scripted({1: reply_with("1.5")}), evaluator=evaluator, config=config())
    assert evaluator.judged_afresh.total() == 0


class SearchingEvaluator(ReadingEvaluator):
    """Measures only well enough to choose, unless a fresh judge is asked for; notes what there was to beat."""

    def __init__(self, afresh=None):
        super().__init__(afresh)
        self.beats = []

    async def evaluate(self, problem, candidate, *, fresh=False, best_speedup=None):
        verdict = await super().evaluate(problem, candidate, fresh=fresh)
        if not fresh:
            self.beats.append(best_speedup)
        evidence = verdict.evidence.model_copy(update={"effort": "rank" if fresh else "search"})
        return verdict.model_copy(update={"evidence": evidence})


@pytest.mark.parametrize(
    ("kind", "count"), [*((ReadingEvaluator, count) for count in (CONFIG.confirm, 1, 0)), (SearchingEvaluator, 0)]
)
def test_as_many_are_judged_afresh_as_was_asked_for(log, kind, count):
    evaluator = kind()
    searched(log, evaluator=evaluator, config=CONFIG.model_copy(update={"confirm": count}))
    assert evaluator.judged_afresh.total() == count


def test_a_lone_right_candidate_that_was_measured_to_choose_is_measured_in_full(log):
    evaluator = SearchingEvaluator()
    view = searched(log, provider=Scripted({1: reply_with("1.5")}), evaluator=evaluator, config=config())
    assert evaluator.judged_afresh.total() == 1 and view.best.is_measured_in_full


def test_the_best_was_measured_in_full_however_many_fell(log):
    falling = {"2.0": "1.0", "1.9": "1.01", "1.5": "1.02", "1.2": "1.03"}
    view = searched(log, evaluator=SearchingEvaluator(falling), config=config(attempts=7, confirm=1))
    assert view.best.is_measured_in_full


def test_each_candidate_is_measured_against_the_best_so_far(log):
    evaluator = SearchingEvaluator()
    view = searched(log, evaluator=evaluator)
    bests, best = [], None
    for attempt in view.attempts:
        if attempt.verdict is not None and attempt.same_as is None:
            bests.append(best)
            speedup = attempt.verdict.measurement.speedup if attempt.verdict.outcome == "passed" else None
            best = max((one for one in (best, speedup) if one is not None), default=None)
    assert evaluator.beats == bests and any(bests)


PLAN = 'Thoughts.\n```json\n[{"name": "tile it", "how": "Tile the rows."}, {"name": "fuse it", "how": "Fuse."}]\n```\n'


def test_a_plan_becomes_the_ideas_of_later_steps_and_counts_as_no_attempt(log):
    provider = Scripted({1: PLAN, 2: reply_with("1.5")})
    view = searched(log, provider=provider, config=config(advisers=("plan",)))
    plan, draft = view.attempts
    assert (plan.ask.role, plan.ask.idea, plan.outcome) == ("plan", "plan", "advice")
    assert (draft.ask.role, draft.ask.idea, view.spent) == ("propose", "tile it", 1)
    assert "Tile the rows." in provider.requests[1].prompt


def test_a_section_can_be_left_out_of_all_prompts(log):
    provider = Scripted()
    searched(log, provider=provider, config=CONFIG.model_copy(update={"without": ("hardware",)}))
    assert not [request for request in provider.requests if "## Hardware" in request.prompt]


def test_lockstep_decides_only_when_nothing_is_in_flight(log):
    running = set()

    class Watching(Scripted):
        async def complete(self, request, ask, prompt):
            running.add(ask.attempt)
            view = fold(PROBLEM.name, log.events())
            batch = [one.number for one in view.attempts if one.decision == view.attempt(ask.attempt).decision]
            assert all(one.finished for one in view.attempts if one.number < batch[0])
            return await super().complete(request, ask, prompt)

    searched(log, provider=Watching(), config=CONFIG.model_copy(update={"slots": 3, "lockstep": True}))
    assert running == set(range(1, 8))


def test_what_a_critic_says_of_a_failed_repair_is_told_to_the_next_one(log):
    critique = '```json\n[{"name": "bounds", "how": "The loop leaves out the tail."}]\n```\n'
    provider = Scripted({1: reply_with("check"), 2: reply_with("build"), 3: critique, 4: reply_with("1.5")})
    view = searched(log, provider=provider, config=config(attempts=3, repairs=3, advisers=("critique",)))
    steps = [(attempt.ask.role, attempt.ask.parent) for attempt in view.attempts]
    assert steps == [("propose", None), ("repair", 1), ("critique", 2), ("repair", 2)]
    assert "leaves out the tail" in provider.requests[3].prompt


def test_what_a_reflection_teaches_stands_in_later_prompts(log):
    lesson = '```json\n[{"name": "lesson", "how": "Wide loads pay here."}]\n```\n'
    answers = {number: reply_with(f"1.{number}") for number in range(1, 9)} | {9: lesson, 10: reply_with("3.0")}
    provider = Scripted(answers)
    view = searched(log, provider=provider, config=config(attempts=9, advisers=("reflect",)))
    assert view.attempt(9).ask.role == "reflect"
    assert "Wide loads pay here." in provider.requests[9].prompt


def test_a_stronger_model_is_asked_once_the_first_has_stalled(log):
    provider = Scripted({number: reply_with("1.5") for number in range(1, 7)})
    changes = {"model": "small", "models": ("strong",), "stall": 2, "attempts": 5}
    view = searched(log, provider=provider, config=config(**changes))
    assert [attempt.ask.model for attempt in view.attempts] == ["small", "small", "small", "strong", "strong"]
