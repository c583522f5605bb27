"""One strategy on one made-up problem, without engine, log and prompts: thousands of searches in minutes."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from kernelwright.agent.engine.search import next_to_confirm
from kernelwright.agent.log.records import Ask, Attempt, FoundCandidate, KnownIdea, PromptOutline
from kernelwright.agent.log.view import View
from kernelwright.agent.providers.kinds.simulated import Landscape, SimulatedKernel
from kernelwright.agent.strategies import Step, Stop, Strategy
from kernelwright.prompts import Traits, applicable, idea_bank
from kernelwright.sandbox.verdict.verdicts import Authenticity, Evidence, Failed, Measurement, Pairing, Passed, Verdict

CONFIRMED = 3
EVIDENCE = Evidence(jail=(), seconds={}, authenticity=Authenticity(label="unknown"), problem_status=None, versions={})
PROMPT = PromptOutline(role="propose", target="cpp", digest="", stable_digest="", sections=())
IDEAS = tuple(
    KnownIdea.model_validate(idea.model_dump())
    for idea in applicable(idea_bank(), Traits(operators=("softmax",), bound="memory", target="cpp"))
)


class Played(NamedTuple):
    """What came of a search."""

    reached: dict[int, float]
    """By budget: the true speedup of the attempt that would have been named the best, at least 1: PyTorch stays."""
    attempts: int
    """How many were made before the strategy stopped."""


def play(strategy: Strategy, landscape: Landscape, budgets: Sequence[int], seed: int) -> Played:
    """Search with the largest budget; what a smaller one reaches is seen on the way: no strategy knows its budget.

    One slot, so that each decision sees all that came before it.
    """
    rng = random.Random(f"{seed}/play")
    view = View(problem="simulated", ideas=IDEAS)
    kernels: list[SimulatedKernel] = []
    reached: dict[int, float] = {}
    while len(kernels) < max(budgets):
        decision = strategy.propose(view, 1, random.Random(f"{seed}/{len(kernels)}"))
        if isinstance(decision, Stop):
            break
        kernels.append(_next(landscape, decision[0], kernels, rng))
        attempt = _attempt(len(kernels), decision[0], _judged(landscape, kernels[-1], rng))
        view = View.model_construct(problem=view.problem, ideas=IDEAS, attempts=(*view.attempts, attempt))
        if len(kernels) in budgets:
            reached[len(kernels)] = _true_best(landscape, view, kernels, rng)
    end = _true_best(landscape, view, kernels, rng)
    return Played({budget: reached.get(budget, end) for budget in budgets}, len(kernels))


def _next(landscape: Landscape, step: Step, kernels: list[SimulatedKernel], rng: random.Random) -> SimulatedKernel:
    if step.parent is None:
        return landscape.draft(step.idea, rng)
    parent = kernels[step.parent - 1]
    return landscape.repair(parent, rng) if step.role == "repair" else landscape.improve(parent, step.idea, rng)


def _judged(landscape: Landscape, kernel: SimulatedKernel, rng: random.Random) -> Verdict:
    if kernel.mends is not None:
        return Failed.model_construct(stage="check", reason="simulated", log="", evidence=EVIDENCE)
    return passed(landscape.measured(kernel, rng))


def passed(speedup: float) -> Passed:
    """A verdict with one sample."""
    pairing = Pairing.model_construct(baseline="eager", candidate_ms=(1.0,), baseline_ms=(speedup,), workers=())
    measurement = Measurement.model_construct(pairings=(pairing,), threads=1, placebo=None)
    return Passed.model_construct(measurement=measurement, evidence=EVIDENCE)


def _attempt(number: int, step: Step, verdict: Verdict) -> Attempt:
    ask = Ask.model_construct(attempt=number, problem="simulated", target="cpp", model="m", **step._asdict())
    found = FoundCandidate.model_construct(digest=str(number), language="cpp", how="", warnings=(), normal="", knobs=())
    return Attempt.model_construct(
        ask=ask,
        prompt=PROMPT,
        request_digest="",
        temperature=None,
        max_tokens=None,
        sample=0,
        extraction=found,
        verdict=verdict,
    )


def _true_best(landscape: Landscape, view: View, kernels: list[SimulatedKernel], rng: random.Random) -> float:
    """The true speedup of the best by a fresh measurement of the fastest, as the engine confirms it."""
    while (attempt := next_to_confirm(view, CONFIRMED)) is not None:
        fresh = attempt.model_copy(update={"confirmed": passed(landscape.measured(kernels[attempt.number - 1], rng))})
        fresh.__dict__.pop("standing", None)
        attempts = (*view.attempts[: attempt.number - 1], fresh, *view.attempts[attempt.number :])
        view = View.model_construct(problem=view.problem, ideas=IDEAS, attempts=attempts)
    return 1.0 if view.best is None else max(1.0, math.exp(kernels[view.best.number - 1].log_speedup))
