"""What to ask next: budgets, then tuning, then advice, then the strategy. Pure, so that a replay decides alike."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.events import Asked
from kernelwright.agent.log.findings import Decision
from kernelwright.agent.log.outline import PromptOutline
from kernelwright.agent.log.records import Ask, Request
from kernelwright.agent.log.view import View
from kernelwright.agent.steering.advice import advice_steps
from kernelwright.agent.steering.budget import exceeded, near_floor, out_of_attempts, spent
from kernelwright.agent.steering.models import choose_model
from kernelwright.agent.steering.prices import Prices
from kernelwright.agent.steering.tuning import to_judge, to_screen
from kernelwright.agent.strategies import Step, Stop, Strategy, StrategyError
from kernelwright.problems import Problem
from kernelwright.prompts import Brief, render

NOTHING_ASKED = hashlib.sha256(b"").hexdigest()


class PreparedAsk(NamedTuple):
    """An ask as it is logged, with its prompt's text, which is empty for tuning."""

    asked: Asked
    text: str


@dataclass(frozen=True)
class Decider:
    """Decides for one problem; keeps nothing between calls."""

    problem: Problem
    config: SearchConfig
    strategy: Strategy
    brief_for: Callable[[Problem, View, Ask], Brief]
    prices: Prices = field(default_factory=Prices)
    limit: Callable[[View], str | None] = lambda view: None
    """A further reason to stop, such as the budget of all problems together."""

    def decide(self, view: View, room: int) -> list[PreparedAsk] | Stop:
        """At most `room` asks; none to wait; or the end, which counts once nothing is pending."""
        reason = self._spent_out(view)
        if reason is not None:
            return Stop(reason=reason)
        if to_screen(view, self.config) is not None:
            return []
        tunings = to_judge(view, self.config)
        if tunings:
            steps = [Step("tune", parent.number, "constants", setting) for parent, setting in tunings]
            return self._opened(view, steps[:room], room)
        reason = out_of_attempts(view, self.config)
        if reason is not None:
            return Stop(reason=reason)
        advice = advice_steps(view, self.config)
        if advice or any(attempt.advises for attempt in view.pending):
            return self._opened(view, advice[:room], room)
        return self._by_strategy(view, room)

    def _spent_out(self, view: View) -> str | None:
        reason = near_floor(view, self.config.near_floor) or self.limit(view)
        return reason or exceeded(self.config.budget, spent(view, self.prices))

    def _by_strategy(self, view: View, room: int) -> list[PreparedAsk] | Stop:
        left = self.config.attempts + view.granted - view.spent
        allowed = min(room, left)
        decision = self.strategy.propose(view, allowed, self._rng(view))
        if isinstance(decision, Stop):
            return decision
        self._check(view, decision, allowed)
        return self._opened(view, decision, room)

    def _check(self, view: View, steps: list[Step], room: int) -> None:
        finished = {None, *(attempt.number for attempt in view.attempts if attempt.finished)}
        if not steps and not view.pending:
            raise StrategyError(
                f"strategy {self.config.strategy!r} waits although nothing is pending; correct its propose"
            )
        if len(steps) > room or any(step.parent not in finished for step in steps):
            raise StrategyError(
                f"strategy {self.config.strategy!r} broke its rules: at most {room} steps, each from a finished "
                "attempt; correct its propose"
            )

    def _rng(self, view: View) -> random.Random:
        return random.Random(f"{self.config.seed}/{self.problem.name}/{view.next_number}")

    def _opened(self, view: View, steps: list[Step], room: int) -> list[PreparedAsk]:
        rng = self._rng(view)
        opened: list[PreparedAsk] = []
        for at, step in enumerate(steps):
            ask = Ask(
                attempt=view.next_number + at,
                problem=self.problem.name,
                target=self.config.target,
                model=choose_model(view, self.config, self.prices, rng),
                **step._asdict(),
            )
            decision = Decision(first=view.next_number, room=room)
            if step.role == "tune":
                opened.append(self._tuned(ask, decision))
            else:
                opened.append(self._asked(view, ask, decision, [one.asked for one in opened]))
        return opened

    def _asked(self, view: View, ask: Ask, decision: Decision, beside: list[Asked]) -> PreparedAsk:
        """The decision together with the whole request, so that it can be repeated word for word."""
        prompt = render(self.brief_for(self.problem, view, ask), without=frozenset(self.config.without))
        before = [(one.prompt.digest, one.ask.model) for one in view.attempts]
        before += [(one.prompt.digest, one.ask.model) for one in beside]
        request = Request(
            model=ask.model,
            prompt=prompt.text,
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
            sample=before.count((prompt.digest, ask.model)),
        )
        asked = Asked(
            problem=self.problem.name,
            attempt=ask.attempt,
            ask=ask,
            prompt=PromptOutline.of(prompt),
            request_digest=request.digest,
            decision=decision,
            **request.model_dump(include={"temperature", "max_tokens", "sample"}),
        )
        return PreparedAsk(asked, prompt.text)

    def _tuned(self, ask: Ask, decision: Decision) -> PreparedAsk:
        nothing = PromptOutline(
            role="tune", target=ask.target, digest=NOTHING_ASKED, stable_digest=NOTHING_ASKED, sections=()
        )
        asked = Asked(
            problem=self.problem.name,
            attempt=ask.attempt,
            ask=ask,
            prompt=nothing,
            request_digest="",
            temperature=None,
            max_tokens=None,
            sample=0,
            decision=decision,
        )
        return PreparedAsk(asked, "")
