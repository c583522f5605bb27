"""An OpenEnv environment: a problem is posed, each step judges one answer and gives its verdict.

    uvicorn --factory kernelwright.integrations.openenv_environment:app

A step earns the gain of its candidate over the best of the episode. So the rewards of an episode add up to the worth
of its best kernel, and the same answer again earns nothing.
"""

import random
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from kernelwright.evals.runs import first_prompt
from kernelwright.integrations.reward import Flag
from kernelwright.integrations.scoring import CompletionScorer
from kernelwright.problems import catalog_names
from kernelwright.problems.problem import LibraryMissing
from kernelwright.prompts import Target
from kernelwright.sandbox.authenticity.scan import GivenProblem, checked_problems
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child.driver import device_count

try:
    from fastapi import FastAPI
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError as error:
    raise LibraryMissing.of_extra("the OpenEnv environment", error.name, "openenv") from None

STEPS, SESSIONS = 4, 64


class KernelAction(Action):
    """An answer: a whole reply, with its reasoning and its fences, or the source alone."""

    completion: str = Field(max_length=1_000_000)


class KernelObservation(Observation):
    """The judge's answer. `reward` is the gain over the best of the episode; None where nothing was judged."""

    text: str
    """After a reset the prompt; after a step the verdict in words."""
    worth: float | None = None
    """The reward of this answer for itself."""
    flags: tuple[Flag, ...] = ()


class KernelState(State):
    problem: str = ""
    best: float = 0.0
    best_source: str | None = None
    steps_left: int = 0


class KernelEnvironment(Environment[KernelAction, KernelObservation, KernelState]):
    """One episode at a time; sessions share the scorer, and with it one judge."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, scorer: CompletionScorer, problems: Sequence[GivenProblem], target: Target, steps: int = STEPS
    ) -> None:
        super().__init__()
        self._scorer, self._target, self._steps = scorer, target, steps
        self._problems = {one if isinstance(one, str) else one.name: one for one in checked_problems(problems)}
        self._state = KernelState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, problem: str | None = None, **_: Any
    ) -> KernelObservation:
        """Pose a problem: the one that is asked for, if it is one of this environment's, or one drawn by `seed`."""
        if problem is not None and problem not in self._problems:
            raise ValueError(f"no problem {problem!r} here; there are: {', '.join(self._problems)}")
        name = problem or random.Random(seed).choice(list(self._problems))
        text = first_prompt(self._scorer.problem(self._problems[name]), self._target).text
        self._state = KernelState(episode_id=episode_id or uuid.uuid4().hex, problem=name, steps_left=self._steps)
        return KernelObservation(text=text)

    def step(self, action: KernelAction, timeout_s: float | None = None, **_: Any) -> KernelObservation:
        """Judge an answer. Limits of time are the judge's own."""
        state = self._state
        if not state.steps_left:
            raise ValueError("the episode has ended, or none has begun; reset the environment")
        (scored,) = self._scorer.score([self._problems[state.problem]], [action.completion])
        worth, gain = scored.reward.value, None
        if worth is not None:
            gain = max(0.0, worth - state.best)
            if gain:
                state.best, state.best_source = worth, scored.source
        state.step_count, state.steps_left = state.step_count + 1, state.steps_left - 1
        done = not state.steps_left or worth == 1
        state.steps_left = 0 if done else state.steps_left
        return KernelObservation(text=scored.words, done=done, reward=gain, worth=worth, flags=scored.reward.flags)

    @property
    def state(self) -> KernelState:
        return self._state


def app(
    problems: Sequence[GivenProblem] = (),
    target: Target | None = None,
    steps: int = STEPS,
    scorer: CompletionScorer | None = None,
) -> FastAPI:
    """Return the environment as a web application; by default the catalog, on this machine's GPU if it has one."""
    language: Target = target or ("cuda" if device_count() else "cpp")
    judge = scorer or CompletionScorer(
        settings=JudgeSettings(device="cpu" if language == "cpp" else "cuda", effort="search")
    )
    posed = checked_problems(problems) or catalog_names()
    return create_app(
        lambda: KernelEnvironment(judge, posed, language, steps),
        KernelAction,
        KernelObservation,
        env_name="kernelwright",
        max_concurrent_envs=SESSIONS,
    )
