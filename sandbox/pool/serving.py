"""The process of a worker on this machine, also of the one behind `Judging`: JSON lines come in, and leave.

`python -m kernelwright.sandbox.pool.serving THREADS ORDER`.

It ends when its input does, so also when its driver is killed, and
ends every child first; should it be killed instead, the children's supervisors notice and end them.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

from kernelwright.sandbox.jail.zygote import become_a_judge, imports_that_stay
from kernelwright.sandbox.logs import show_logs_as_asked
from kernelwright.sandbox.pool.devices import WorkerOptions
from kernelwright.sandbox.pool.protocol import Answer, Question
from kernelwright.sandbox.workfolder import close_all
from kernelwright_child import driver, supervisor

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judges import Worker

STOPPING_S = 10.0


class Serving:
    """Answers each line in one of a few threads."""

    def __init__(self, threads: int, worker: "Worker", out: IO[str]) -> None:
        self._worker = worker
        self._out = out
        self._writing = threading.Lock()
        self._pool = ThreadPoolExecutor(threads)
        self._working: set[int] = set()
        self._cancelled: set[int] = set()

    def take(self, message: dict[str, Any]) -> None:
        if "cancel" in message:
            self._cancelled.add(message["cancel"])
            return
        if "release" in message:
            self._pool.submit(self._worker.release, message["release"])
            return
        self._working.add(message["id"])
        self._pool.submit(self._answer, message["id"], message["question"])

    def _answer(self, number: int, question: dict[str, Any]) -> None:
        try:
            if number not in self._cancelled:
                line = json.dumps({"id": number, "answer": self._answered(question)})
                # A driver that no longer reads has lost this process: it ends its input too, or kills it.
                with self._writing, contextlib.suppress(OSError):
                    self._out.write(line + "\n")
                    self._out.flush()
        finally:
            self._cancelled.discard(number)
            self._working.discard(number)

    def _answered(self, question: dict[str, Any]) -> dict[str, Any]:
        """As JSON. A question that can not be answered is answered too: somebody waits for each."""
        try:
            answer = self._worker.answer(Question.model_validate(question))
        except Exception as error:
            answer = Answer(trouble=f"the question could not be answered ({type(error).__name__}); please report it")
        return answer.model_dump(mode="json", exclude_none=True)

    def stop(self) -> bool:
        """End every child, so that each thread comes to its own end and cleans up; whether all did in time."""
        self._worker.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + STOPPING_S
        while any(thread.is_alive() for thread in self._pool._threads) and time.monotonic() < end:
            end_children()
            time.sleep(0.05)
        if self._working and time.monotonic() >= end:
            return False
        self._worker.close()
        return True


def end_children() -> None:
    for pid in supervisor.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    show_logs_as_asked()
    order = WorkerOptions.model_validate_json(sys.argv[2])
    order.settle()
    settings = order.settings()
    become_a_judge(settings.threads)
    if settings.gpu:
        driver.begin_context(settings.ordinal)
    with imports_that_stay():
        from kernelwright.sandbox.pool.judges import Worker  # torch comes with it

    serving = Serving(int(sys.argv[1]), Worker(order), out)
    for line in sys.stdin:
        if not line.endswith("\n"):
            break  # the driver was killed while it wrote
        serving.take(json.loads(line))
    serving.stop()
    end_children()
    close_all()  # what a thread that hangs, or is late on a busy machine, would have removed
    os._exit(0)  # a thread that hangs must not keep us; the children's supervisors end them once this process is gone


if __name__ == "__main__":
    main()
