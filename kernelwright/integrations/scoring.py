"""Completions scored: the candidate out of each is judged, and its verdict rewarded. Hooks of trainers use this.

One judge is kept warm for all of them: a process of its own, or with `server` (or `KERNELWRIGHT_SERVER`) a service. It
lives in a thread with an event loop, so that trainers with and without loops of their own can call it.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from kernelwright.agent.replies import NotExtracted, extract
from kernelwright.integrations.reward import USUAL, Reward, RewardTerms, feedback, reward
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.authenticity.scan import GivenProblem, checked_problem, checked_problems, listed, shown
from kernelwright.sandbox.pool.client import SERVER
from kernelwright.sandbox.pool.judge_pool import Judged, JudgePool, JudgingError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate

Completion = str | Sequence[Mapping[str, Any]]
"""The text of a reply, or the messages of a conversation, of which the assistant's last is the reply."""
SEARCHING = JudgeSettings(effort="search")
"""As much effort as a choice takes; the interval is as honest as that of a ranking."""
STARTING = threading.Lock()
"""Held while a scorer starts its thread; not the scorer's own, so that one can be sent to another process before."""
T = TypeVar("T")


class ScoredCompletion(NamedTuple):
    reward: Reward
    words: str
    """For the model: the reason for a missing candidate, or the verdict."""
    source: str | None = None
    """The candidate; None where the reply holds none."""
    report: dict[str, Any] | None = None
    """The object of `kernelwright judge --json`; None where nothing was judged."""


def training_problem(name: str | os.PathLike[str], device: str = "cpu") -> Problem:
    """Load a problem for training: where it allows any operators, the candidate's own kernels alone count.

    Else a model would first learn to wrap the reference in torch.compile, or to call a library next to a kernel that
    does nothing. On a GPU a catalog problem comes at its size for that. Raises `ProblemError`.
    """
    problem = load_problem(name, "gpu" if device != "cpu" and name in catalog_names() else None)
    return problem.model_copy(update={"operators": "custom-only"}) if problem.operators == "any" else problem


class CompletionScorer:
    """Scores completions, from any thread. Close it, or use it as a context; the judge is started when first needed."""

    def __init__(
        self,
        *,
        server: str | None = None,
        settings: JudgeSettings | None = None,
        terms: RewardTerms = USUAL,
        in_flight: int = 8,
        load: Callable[[str], Problem] | None = None,
    ) -> None:
        """`server`: address of a service that judges; default: `KERNELWRIGHT_SERVER`, else a process of its own.

        `settings`: what a verdict may cost, and where candidates are judged; default: on the processor, at `search`.
        `load` makes the problem of a name or path, its size, dtype and operator policy; default: `training_problem`.
        """
        self.terms = terms
        settings = settings or SEARCHING
        self._judging_options = (in_flight, settings, server or os.environ.get(SERVER))
        self._load = load or partial(training_problem, device=settings.device)
        self._problems: dict[str, Problem] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: JudgePool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def problem(self, name: GivenProblem) -> Problem:
        """Load the problem of that name or path once; a `Problem` stays as it is. Raises `ProblemError`."""
        given = checked_problem(name)
        if isinstance(given, Problem):
            return given
        if given not in self._problems:
            self._problems[given] = self._load(given)
        return self._problems[given]

    def score(self, problems: Sequence[GivenProblem], completions: Sequence[Completion]) -> list[ScoredCompletion]:
        """Score the completions, in their order. Equal candidates for one problem are judged once.

        Raises `ProblemError` for an unknown name, and `JudgingError` where not one of them can be judged. Raises
        `ValueError` for other types, and where there is not one problem for each completion.
        """
        return self._begin(self._score(problems, completions)).result()

    async def score_async(
        self, problems: Sequence[GivenProblem], completions: Sequence[Completion]
    ) -> list[ScoredCompletion]:
        return await asyncio.wrap_future(self._begin(self._score(problems, completions)))

    def close(self) -> None:
        if self._loop is not None:
            if self._pool is not None:
                self._begin(self._pool.close()).result()
                self._pool = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with STARTING:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="kernelwright-scorer", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _score(
        self, problems: Sequence[GivenProblem], completions: Sequence[Completion]
    ) -> list[ScoredCompletion]:
        asked, replies = checked_problems(problems), _replies(completions)
        if len(asked) != len(replies):
            raise ValueError(f"problems has {len(asked)} entries and completions {len(replies)}; give one for each")
        posed = [self.problem(one) for one in asked]
        found = [extract(reply) for reply in replies]
        keys = [(one.digest, getattr(reply, "source", "")) for one, reply in zip(posed, found, strict=True)]
        wanted = {key: one for key, one in zip(keys, posed, strict=True) if key[1]}
        ended = await asyncio.gather(
            *(self._judge(problem, Candidate(source=source)) for (_, source), problem in wanted.items()),
            return_exceptions=True,
        )
        failures = [one for one in ended if isinstance(one, BaseException)]
        if failures and (len(failures) == len(ended) or not all(isinstance(one, JudgingError) for one in failures)):
            raise failures[0]
        judged = dict(zip(wanted, ended, strict=True))
        return [
            ScoredCompletion(Reward(value=0, why=one.kind), f"no candidate: {one.detail}")
            if isinstance(one, NotExtracted)
            else self._scored(one.source, judged[key])
            for key, one in zip(keys, found, strict=True)
        ]

    def _scored(self, source: str, judged: Judged | BaseException) -> ScoredCompletion:
        if isinstance(judged, BaseException) or judged.report is None:
            why = judged if isinstance(judged, BaseException) else judged.error
            return ScoredCompletion(reward(None), f"no verdict: {why}", source)
        worth = reward(judged.report, self.terms)
        return ScoredCompletion(worth, feedback(judged.report, worth), source, judged.report)

    async def _judge(self, problem: Problem, candidate: Candidate) -> Judged:
        """Judge again, once, where the judge's process ended: another candidate may have been the cause."""
        pool = self._pool = self._pool or JudgePool(*self._judging_options).open()
        try:
            return await pool.judge(problem, candidate)
        except JudgingError:
            if pool.server is None:
                return await pool.judge(problem, candidate)
            self._pool = None  # the next judging does not wait again for a service that is gone
            raise


def _replies(completions: Sequence[Completion]) -> list[str]:
    """Return the text of each. Raises `ValueError` for another type, with its place."""
    texts: list[str] = []
    given: list[Any] = listed(completions, "completions")
    for index, one in enumerate(given):
        is_talk = isinstance(one, Sequence) and all(isinstance(message, Mapping) for message in one)
        if not isinstance(one, str) and not is_talk:
            raise ValueError(f"completions[{index}] is {shown(one)}; give a text, or the messages of a conversation")
        content = one
        if not isinstance(one, str):
            spoken = [message for message in one if message.get("role") == "assistant"]
            content = spoken[-1].get("content") if spoken else ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content or () if part.get("type") == "text")
        texts.append(content)
    return texts
