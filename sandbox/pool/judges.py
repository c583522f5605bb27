"""`Judges`: judging in this process, for any number of problems and threads.

Builds run concurrently. Timing is one at a time: in this process, and by `sandbox/locks.py` on the machine.
"""

import errno
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self, TypeVar

import torch
from pydantic import JsonValue

from kernelwright.problems import Problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.judge.stages import SpareWorkers
from kernelwright.sandbox.locks import WaitLimit
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.machine import require_tools
from kernelwright.sandbox.pool.dispatcher import KEPT
from kernelwright.sandbox.pool.executor import Answer, JobError, Question, Work
from kernelwright.sandbox.verdict.errors import (
    BrokenProblem,
    MachineError,
    SandboxError,
    UnsupportedHere,
    UnsupportedProblem,
)
from kernelwright.sandbox.verdict.settings import JudgeSettings, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict

R = TypeVar("R")


def within_memory(problem: Problem, work: Callable[[], R]) -> R:
    """Return what `work` returns. Raises `UnsupportedHere` where memory ran out, on this machine or on its device.

    The original error is released first: its frames hold tensors whose memory the next problem needs.
    """
    try:
        return work()
    except (MemoryError, torch.OutOfMemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        why = one_line(str(error).partition("\n")[0].strip() or type(error).__name__, 200)
    raise UnsupportedHere(
        f"memory ran out while {problem.name} was judged ({why}); use one with more, or a smaller size"
    )


Key = tuple[str, JudgingEffort, str]
"""A problem's digest, the effort of its judgings, and the other settings that differ from the usual ones."""
Overrides = Mapping[str, JsonValue]
USUAL: Overrides = {}


class _SharedJudge(Judge):
    def __init__(self, problem: Problem, settings: JudgeSettings) -> None:
        super().__init__(problem, settings)
        self.starting = threading.Lock()
        self.started = False
        self.users = 0


class Judges:
    """Keeps the judges of the last few problems. Close it.

    Its methods raise `MachineError` or `BrokenProblem` where no verdict is possible; the latter ends the problem's.
    """

    def __init__(self, settings: JudgeSettings, kept: int = KEPT, is_lasting: bool = True) -> None:
        """`is_lasting`: whether more than one candidate will be judged."""
        self.settings = settings
        self._spare = SpareWorkers(backend_of(settings), is_lasting) if settings.gpu else None
        self._most = kept
        self._kept: OrderedDict[Key, _SharedJudge] = OrderedDict()
        self._fresh: set[_SharedJudge] = set()
        """Those of fresh judgings, of one candidate each."""
        self._choosing = threading.Lock()
        self._device = threading.Lock()
        """Held by all use of the device: a reference that starts would disturb a timing."""
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(
        self,
        problem: Problem,
        candidate: Candidate,
        *,
        fresh: bool = False,
        best_speedup: float | None = None,
        overrides: Overrides = USUAL,
    ) -> Verdict:
        """Return the verdict. The build comes from the store of finished builds, or is made here where that lacks it.

        `fresh`: by references of its own, with seeds of their own. `best_speedup`: see `Judge.evaluate`.
        `overrides`: settings in place of the usual ones, the effort among them.
        """
        settings = self._settings(overrides)
        if settings.effort != "screen":
            self._forget((problem.digest, "screen", _text(overrides)))
        with self._work_on(problem, candidate, fresh, settings, overrides) as judge:
            built = within_memory(problem, lambda: judge.build(candidate))
            try:
                with self._device:
                    return within_memory(problem, lambda: judge.evaluate(built, best_speedup))
            finally:
                built.close()

    def answer(self, question: Question) -> Answer:
        """Run a worker's stage. Never raises for what a candidate, a problem or this machine does."""
        work = question.work
        try:
            if question.stage == "build":
                return self._built(work)
            effort = "screen" if question.stage == "check" else work.effort
            overrides = work.overrides | ({} if effort is None else {"effort": effort})
            verdict = self.judge(
                work.problem, work.candidate, fresh=work.fresh, best_speedup=work.best_speedup, overrides=overrides
            )
            return Answer(verdict=verdict)
        except BrokenProblem as error:
            unsupported = isinstance(error, UnsupportedProblem)
            return Answer(error=JobError(message=str(error), whole_problem=True, unsupported=unsupported))
        except SandboxError as error:
            return Answer(error=JobError(message=str(error), machine_lacks=isinstance(error, MachineError)))
        except Exception as error:  # one candidate must not end a batch of thousands
            why = f"the judge itself failed ({type(error).__name__}: {error}); please report it"
            return Answer(error=JobError(message=why))

    def _built(self, work: Work) -> Answer:
        with self._work_on(
            work.problem, work.candidate, False, self._settings(work.overrides), work.overrides
        ) as judge:
            built = within_memory(work.problem, lambda: judge.build(work.candidate, ahead=False))
            if built.failure is not None:
                return Answer(verdict=judge.evaluate(built))
            built.close()
            return Answer(product=built.key if self.settings.shortcuts else "")

    def release(self, digest: str) -> None:
        """End the problem's reference processes, unless they are in use: nothing more is asked about it for now."""
        with self._choosing:
            keys = [key for key in self._kept if key[0] == digest]
        for key in keys:
            self._forget(key)

    def stop(self) -> None:
        """Begin nothing more: waiting judgings end without a verdict. The children are left alone."""
        self._is_stopped = True
        with self._choosing:
            for judge in (*self._kept.values(), *self._fresh):
                judge.stop()

    def close(self) -> None:
        """End the reference processes. A judging that goes on in another thread ends with an error."""
        self.stop()
        with self._choosing:
            judges = [*self._kept.values(), *self._fresh]
            self._kept.clear()
        for judge in judges:
            judge.close()
        if self._spare is not None:
            self._spare.close()

    def _settings(self, overrides: Overrides) -> JudgeSettings:
        chosen = (
            JudgeSettings.model_validate(self.settings.model_dump() | dict(overrides)) if overrides else self.settings
        )
        return chosen.at(chosen.effort)

    @contextmanager
    def _work_on(
        self, problem: Problem, candidate: Candidate, fresh: bool, settings: JudgeSettings, overrides: Overrides
    ) -> Iterator[Judge]:
        require_tools(candidate.language)
        key = None if fresh else (problem.digest, settings.effort, _text(overrides))
        judge, is_spoilt = self._taken(key, problem, settings), False
        try:
            self._start(judge)
            yield judge
        except MachineError:
            raise
        except Exception:  # the problem is broken, or we are: the next judging gets new children
            is_spoilt = True
            raise
        finally:
            self._leave(judge)
            if key is not None and is_spoilt:
                self._forget(key)

    def _taken(self, key: Key | None, problem: Problem, settings: JudgeSettings) -> _SharedJudge:
        with self._choosing:
            if self._is_stopped:
                raise MachineError("the judging was stopped")
            judge = self._kept.get(key) if key is not None else None
            judge = judge or _SharedJudge(problem, settings)
            judge.spare = self._spare if self._spare is not None and self._spare.fits(settings) else None
            judge.users += 1
            if key is None:
                self._fresh.add(judge)
            else:
                self._kept[key] = judge
                self._kept.move_to_end(key)
            return judge

    def _leave(self, judge: _SharedJudge) -> None:
        """End it where it was for this judging alone, and those that have not been used for longest."""
        with self._choosing:
            judge.users -= 1
            surplus = [judge] if judge in self._fresh else []
            self._fresh.difference_update(surplus)
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
        """Start its first reference, in one of several threads that ask at the same time."""
        waiting = WaitLimit(stopped=lambda: self._is_stopped)
        with judge.starting:
            if not judge.started:
                with self._device, judge.backend.build_lock(waiting):
                    if self._is_stopped:
                        raise MachineError("the judging was stopped")
                    within_memory(judge.problem, lambda: self._start_first(judge, waiting))
                judge.started = True

    def _start_first(self, judge: Judge, waiting: WaitLimit) -> None:
        """Start its first reference; on a device together with the workers of the candidate that waits."""
        if judge.spare is None:
            _ = judge.reference
            return
        with judge.backend.device_lock(waiting):
            judge.backend.in_parallel([lambda: judge.reference, judge.spare.make])


def _text(overrides: Overrides) -> str:
    return json.dumps({name: value for name, value in overrides.items() if name != "effort"}, sort_keys=True)
