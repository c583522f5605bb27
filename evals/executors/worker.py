"""`Worker`: what answers questions beside a device, or in a build pool. The same on every executor.

It is a judge: it never runs a candidate, and starts the jailed children that do. Questions may come from several
threads at once; what uses the device waits for its turn.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from agent.evaluation import SCREENING
from evals.executors.devices import device_of, device_turn
from evals.executors.order import Order
from evals.executors.protocol import Answer, Question, Work
from evals.executors.warmth import KEPT
from problems import Problem
from sandbox.errors import BrokenProblem, MachineError, SandboxError, UnsupportedProblem
from sandbox.exhausted import within_memory
from sandbox.judge import Judge
from sandbox.machine import require_tools
from sandbox.settings import Settings
from sandbox.verdict import Verdict

GIVING_UP_S = 0.02


class _SharedJudge(Judge):
    """A problem's judge for several threads."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        super().__init__(problem, settings)
        self.starting = threading.Lock()
        self.started = False
        self.users = 0


class Worker:
    """Answers questions; keeps the judges of the last few problems. Close it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.settings = order.settings()
        self._judges: OrderedDict[str, _SharedJudge] = OrderedDict()
        self._choosing = threading.Lock()
        self._device = threading.Lock()
        """Held for whatever uses the device: references that start would be heard in a timing beside them."""
        self._stopping = threading.Event()

    def answer(self, question: Question) -> Answer:
        """Never raises for what a candidate, a problem or this machine does: that is an answer too."""
        try:
            require_tools(question.work.candidate.language)
            work = question.work
            begin = (lambda: self._build(work)) if question.stage == "build" else (lambda: self._run(question))
            return within_memory(work.problem, begin)
        except BrokenProblem as error:
            self._forget(question.work.problem)
            unsupported = isinstance(error, UnsupportedProblem)
            return Answer(trouble=str(error), broken_problem=True, unsupported=unsupported)
        except SandboxError as error:
            return Answer(trouble=str(error), machine_lacks=isinstance(error, MachineError))
        except Exception as error:  # one candidate, whatever it met, must not end a batch of thousands
            self._forget(question.work.problem)
            what = f"{type(error).__name__}: {error}"
            return Answer(trouble=f"the judge itself failed ({what}); please report it")

    def stop(self) -> None:
        """Begin nothing more: questions that wait for their turn end without a verdict. The children are left alone."""
        self._stopping.set()

    def close(self) -> None:
        """End the reference children."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()

    def _build(self, work: Work) -> Answer:
        with self._judge_of(work.problem) as judge:
            built = judge.build(work.candidate, ahead=False)
            if built.failure is not None:
                return Answer(verdict=judge.evaluate(built))
            built.close()
            return Answer(product=built.key if self.settings.shortcuts else "")

    def _run(self, question: Question) -> Answer:
        work, settings = question.work, self.settings
        if question.stage == "check":
            settings = settings.model_copy(update=SCREENING)
        if work.fresh or question.stage == "check":
            with Judge(work.problem, settings) as judge:
                with self._device:
                    _ = judge.reference
                return Answer(verdict=self._judged(judge, work))
        with self._judge_of(work.problem) as kept:
            return Answer(verdict=self._judged(kept, work))

    def _judged(self, judge: Judge, work: Work) -> Verdict:
        """The build comes out of the store of finished builds, or is made here where that does not have it."""
        built = judge.build(work.candidate)
        try:
            with self._device, self._turn():
                return judge.evaluate(built)
        finally:
            built.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until nothing else is timed on the device. Another thread waits for us, so that we can give up."""
        device, granted, done = self.order.device, threading.Event(), threading.Event()
        kind = device.kind if device else device_of(self.settings)
        part = "" if device is None or self.order.alone else str(device.ordinal)

        failed: list[MachineError] = []

        def hold() -> None:
            try:
                with device_turn(kind, part):
                    granted.set()
                    done.wait()
            except MachineError as error:
                failed.append(error)

        waiting = threading.Thread(target=hold, daemon=True)
        waiting.start()
        try:
            while not granted.wait(GIVING_UP_S):
                if failed:
                    raise failed[0]
                if self._stopping.is_set() or not waiting.is_alive():
                    raise MachineError("the judging was stopped before its turn on the device came")
            yield
        finally:
            done.set()

    @contextmanager
    def _judge_of(self, problem: Problem) -> Iterator[_SharedJudge]:
        """The problem's judge with its reference started, by one of several threads that ask at once."""
        with self._choosing:
            judge = self._judges.get(problem.digest) or _SharedJudge(problem, self.settings)
            self._judges[problem.digest] = judge
            self._judges.move_to_end(problem.digest)
            judge.users += 1
        try:
            with judge.starting:
                if not judge.started:
                    with self._device:
                        if self._stopping.is_set():
                            raise MachineError("the judging was stopped")
                        _ = judge.reference
                    judge.started = True
            yield judge
        finally:
            self._leave(judge)

    def _leave(self, judge: _SharedJudge) -> None:
        with self._choosing:
            judge.users -= 1
            idle = [digest for digest, one in self._judges.items() if one.users == 0]
            surplus = [self._judges.pop(digest) for digest in idle[: max(0, len(self._judges) - KEPT)]]
        for one in surplus:
            one.close()

    def _forget(self, problem: Problem) -> None:
        with self._choosing:
            judge = self._judges.get(problem.digest)
            if judge is not None and judge.users == 0:
                self._judges.pop(problem.digest).close()
