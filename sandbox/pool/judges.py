"""`Judges`: judging on one machine, for any number of problems and threads. All that judges goes through it.

Builds run side by side; timing is one at a time, within this process and, by the locks of `timing_locks.py`, among all.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import all_at_once, build_turn, device_held
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.judge.standing import Spare
from kernelwright.sandbox.machine.identity import require_tools
from kernelwright.sandbox.machine.timing_locks import WaitLimit
from kernelwright.sandbox.pool.memory_errors import within_memory
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict

SCREENING: dict[str, Any] = {
    "min_pairs": 4,
    "max_pairs": 4,
    "worker_pairs": 1,
    "compiled": (),
    "sanitize": False,
    "profile": False,
}
"""What the settings become for a screening: enough to see whether a candidate is right, and about how fast.

No tools: they cost some ten seconds a candidate, and nobody reads what they say of a variant that is not judged.
"""
KEPT = 4
"""Problems whose reference children are kept; the one that was asked for longest ago is ended first."""
Key = tuple[str, bool]
"""A problem's digest, and whether it is for screening."""


class _SharedJudge(Judge):
    """A problem's judge for several threads."""

    def __init__(self, problem: Problem, settings: Settings, spare: Spare | None) -> None:
        super().__init__(problem, settings, spare)
        self.starting = threading.Lock()
        self.started = False
        self.users = 0


class Judges:
    """Keeps the judges of the last few problems. Close it.

    Its methods raise `MachineError` or `BrokenProblem` where no verdict is possible; then the problem's are let go.
    """

    def __init__(self, settings: Settings, kept: int = KEPT, is_lasting: bool = True) -> None:
        """`is_lasting`: whether there is more than one candidate to be judged."""
        self.settings = settings
        self._spare = Spare(settings, is_lasting) if settings.gpu else None
        self._most = kept
        self._kept: OrderedDict[Key, _SharedJudge] = OrderedDict()
        self._apart: set[_SharedJudge] = set()
        """Those of fresh judgings, of one candidate each."""
        self._choosing = threading.Lock()
        self._device = threading.Lock()
        """Held for whatever uses the device: references that start would be heard in a timing beside them."""
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, problem: Problem, candidate: Candidate, *, fresh: bool = False, quick: bool = False) -> Verdict:
        """The verdict. `fresh`: by references of its own, with seeds of their own; `quick`: by few pairs, no tools.

        The build comes out of the store of finished builds, or is made here where that does not have it.
        """
        if not quick:
            self._forget((problem.digest, True))
        with self._work_on(problem, candidate, fresh, quick) as judge:
            built = within_memory(problem, lambda: judge.build(candidate))
            try:
                with self._device:
                    return within_memory(problem, lambda: judge.evaluate(built))
            finally:
                built.close()

    def build(self, problem: Problem, candidate: Candidate) -> Built | Verdict:
        """What was built, to be closed; the verdict where the build failed."""
        with self._work_on(problem, candidate, fresh=False, quick=False) as judge:
            built = within_memory(problem, lambda: judge.build(candidate, ahead=False))
            return judge.evaluate(built) if built.failure is not None else built

    def release(self, digest: str) -> None:
        """Nothing more is asked about the problem for now: end its reference children, unless they are in use."""
        for quick in (False, True):
            self._forget((digest, quick))

    def stop(self) -> None:
        """Begin nothing more: what waits for its turn ends without a verdict. The children are left alone."""
        self._is_stopped = True
        with self._choosing:
            for judge in (*self._kept.values(), *self._apart):
                judge.stop()

    def close(self) -> None:
        """End the reference children. A judging that goes on in another thread ends with an error."""
        self.stop()
        with self._choosing:
            judges = [*self._kept.values(), *self._apart]
            self._kept.clear()
        for judge in judges:
            judge.close()
        if self._spare is not None:
            self._spare.close()

    @contextmanager
    def _work_on(self, problem: Problem, candidate: Candidate, fresh: bool, quick: bool) -> Iterator[Judge]:
        require_tools(candidate.language)
        settings = self.settings.model_copy(update=SCREENING) if quick else self.settings
        key = None if fresh else (problem.digest, quick)
        judge, is_spoilt = self._taken(key, problem, settings), False
        try:
            self._start(judge)
            yield judge
        except MachineError:
            raise
        except Exception:  # the problem is broken, or we are: whoever comes next gets children that are not
            is_spoilt = True
            raise
        finally:
            self._leave(judge)
            if key is not None and is_spoilt:
                self._forget(key)

    def _taken(self, key: Key | None, problem: Problem, settings: Settings) -> _SharedJudge:
        with self._choosing:
            if self._is_stopped:
                raise MachineError("the judging was stopped")
            judge = self._kept.get(key) if key is not None else None
            judge = judge or _SharedJudge(problem, settings, self._spare)
            judge.users += 1
            if key is None:
                self._apart.add(judge)
            else:
                self._kept[key] = judge
                self._kept.move_to_end(key)
            return judge

    def _leave(self, judge: _SharedJudge) -> None:
        """End it where it was for this one judging, and those that have not been used for longest."""
        with self._choosing:
            judge.users -= 1
            surplus = [judge] if judge in self._apart else []
            self._apart.difference_update(surplus)
            idle = [key for key, one in self._kept.items() if one.users == 0]
            surplus += [self._kept.pop(key) for key in idle[: max(0, len(self._kept) - self._most)]]
        for one in surplus:
            one.close()

    def _forget(self, key: Key) -> None:
        with self._choosing:
            judge = self._kept.get(key)
            surplus = self._kept.pop(key) if judge is not None and judge.users == 0 else None
        if surplus is not None:
            surplus.close()

    def _start(self, judge: _SharedJudge) -> None:
        """Have its first reference started, by one of several threads that ask at once."""
        waiting = WaitLimit(stopped=lambda: self._is_stopped)
        with judge.starting:
            if not judge.started:
                with self._device, build_turn(self.settings, waiting):
                    if self._is_stopped:
                        raise MachineError("the judging was stopped")
                    within_memory(judge.problem, lambda: self._start_first(judge, waiting))
                judge.started = True

    def _start_first(self, judge: Judge, waiting: WaitLimit) -> None:
        """Its first reference; on a device the workers of the candidate that waits come up beside it."""
        if self._spare is None:
            _ = judge.reference
            return
        with device_held(self.settings, waiting):
            all_at_once(self.settings, [lambda: judge.reference, self._spare.make])
