"""Candidates of the tests through the whole judge, on the device."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.support.efforts import at_asked_effort

SETTINGS = at_asked_effort(
    JudgeSettings(
        device="cuda", threads=2, call_timeout_s=10, worker_pairs=2, min_pairs=8, max_pairs=16, interval_target=0.02
    )
)
BUILDERS = 8


class Judges:
    """One judge for each problem, so that references serve all candidates of it. Use it as a context."""

    def __init__(self, settings=SETTINGS):
        self._settings, self._found, self._stack = settings, {}, ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def of(self, problem):
        if problem.digest not in self._found:
            self._found[problem.digest] = self._stack.enter_context(Judge(problem, self._settings))
        return self._found[problem.digest]

    def judged(self, problem, source):
        """The verdict on one candidate."""
        return self.of(problem).judge(Candidate(source=source))

    def all_judged(self, pairs):
        """By name, the verdict for each problem and source: all are built side by side, then timed in turn.

        No worker is started ahead: dozens at once keep the processor so busy that the device answers late.
        """
        for _, problem, _ in pairs:
            _ = self.of(problem).reference

        def built(problem, source):
            return self.of(problem).build(Candidate(source=source), ahead=False)

        with ThreadPoolExecutor(BUILDERS) as pool:
            builds = [pool.submit(built, problem, source) for _, problem, source in pairs]
            for (name, problem, _), build in zip(pairs, builds, strict=True):
                yield name, self.of(problem).evaluate(build.result())
