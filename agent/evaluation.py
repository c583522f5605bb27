"""Verdicts for the engine: the sandbox's judge behind one awaitable, one candidate at a time."""

import asyncio

from problems import Problem
from sandbox.judge import Judge
from sandbox.machine import require_tools
from sandbox.settings import Settings
from sandbox.verdict import Candidate, Verdict


class LocalEvaluator:
    """Judges on this machine. Judging is serial, since two timings at once would disturb each other. Close it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._judges: dict[str, Judge] = {}
        self._turn = asyncio.Lock()

    async def evaluate(self, problem: Problem, candidate: Candidate) -> Verdict:
        """The verdict; `MachineError` or `BrokenProblem` where none is possible."""
        async with self._turn:
            require_tools(candidate.language)
            judge = self._judges.setdefault(problem.digest, Judge(problem, self._settings))
            return await asyncio.to_thread(judge.judge, candidate)

    def release(self, problem: Problem) -> None:
        """End the problem's reference child; a later candidate starts a new one."""
        judge = self._judges.pop(problem.digest, None)
        if judge is not None:
            judge.close()

    def close(self) -> None:
        """End all children. A judging that still runs in its thread ends with an error that nobody waits for."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()
