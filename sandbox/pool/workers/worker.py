"""`Worker`: what answers questions beside a device, or in a build pool. The same on every executor.

It is a judge: it never runs a candidate, and starts the jailed children that do. Questions may come from several
threads at once; what uses the device waits for its turn.
"""

from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.pool.protocol import Answer, Question, Work
from kernelwright.sandbox.pool.warm_references import KEPT
from kernelwright.sandbox.pool.workers.worker_options import WorkerOptions
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError, SandboxError, UnsupportedProblem


class Worker:
    """Answers questions; keeps the judges of the last few problems. Close it."""

    def __init__(self, order: WorkerOptions) -> None:
        self._judges = Judges(order.settings(), KEPT)

    def answer(self, question: Question) -> Answer:
        """Never raises for what a candidate, a problem or this machine does: that is an answer too."""
        work = question.work
        try:
            if question.stage == "build":
                return self._build(work)
            effort = "screen" if question.stage == "check" else work.effort
            asks = work.asks | ({} if effort is None else {"effort": effort})
            verdict = self._judges.judge(work.problem, work.candidate, fresh=work.fresh, beat=work.beat, asks=asks)
            return Answer(verdict=verdict)
        except BrokenProblem as error:
            unsupported = isinstance(error, UnsupportedProblem)
            return Answer(trouble=str(error), broken_problem=True, unsupported=unsupported)
        except SandboxError as error:
            return Answer(trouble=str(error), machine_lacks=isinstance(error, MachineError))
        except Exception as error:  # one candidate, whatever it met, must not end a batch of thousands
            what = f"{type(error).__name__}: {error}"
            return Answer(trouble=f"the judge itself failed ({what}); please report it")

    def _build(self, work: Work) -> Answer:
        made = self._judges.build(work.problem, work.candidate, work.asks)
        if not isinstance(made, Built):
            return Answer(verdict=made)
        made.close()
        return Answer(product=made.key if self._judges.settings.shortcuts else "")

    def release(self, problem: str) -> None:
        """Nothing more is asked about the problem of this digest for now."""
        self._judges.release(problem)

    def stop(self) -> None:
        """Begin nothing more: questions that wait for their turn end without a verdict. The children are left alone."""
        self._judges.stop()

    def close(self) -> None:
        self._judges.close()
