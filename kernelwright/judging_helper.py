"""The process behind `Judging`: reads pairs as JSON lines, judges them, writes results as JSON lines.

`python -m kernelwright.judging_helper IN_FLIGHT SETTINGS`. It ends at SIGTERM or when its input ends, and ends
every child first; should it be killed instead, the children's keepers notice and end them.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from evals.collecting import candidate_of
from evals.executors.devices import device_turn
from evals.executors.serving import end_children
from evals.scoring import device_of
from problems import Problem
from sandbox.errors import MachineError, SandboxError
from sandbox.machine import require_tools
from sandbox.own_process import become_a_judge
from sandbox.report import report
from sandbox.settings import Settings

STOPPING_S = 10.0
KEPT = 8
"""Problems whose reference children are kept; the one that was asked for longest ago is ended first."""


class Shared:
    """One problem's judge, used by several threads: builds side by side, the rest in turn."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        from sandbox.judge import Judge  # torch comes with it, and this process has to become a judge before

        self.judge = Judge(problem, settings)
        self.starting = threading.Lock()
        self.users = 0


class Helper:
    """Judges pairs in threads."""

    def __init__(self, in_flight: int, settings: Settings, out: IO[str]) -> None:
        self._settings = settings
        self._out = out
        self._writing = threading.Lock()
        self._choosing = threading.Lock()
        self._timing = threading.Lock()
        self._judges: OrderedDict[str, Shared] = OrderedDict()
        self._device = device_of(settings)
        self._pool = ThreadPoolExecutor(in_flight)
        self._cancelled: set[int] = set()
        self._working: set[int] = set()
        self._stopping = False

    def take(self, message: dict[str, Any]) -> None:
        """Begin what a message asks for."""
        if "cancel" in message:
            self._cancelled.add(message["cancel"])
        else:
            self._pool.submit(self._work, message)

    def stop(self) -> bool:
        """End every child, so that each thread comes to its own end and cleans up; whether all did in time."""
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + STOPPING_S
        while self._working and time.monotonic() < end:
            end_children()
            time.sleep(0.05)
        return not self._working

    def close(self) -> None:
        """End the reference children."""
        for shared in self._judges.values():
            shared.judge.close()

    def _work(self, message: dict[str, Any]) -> None:
        number = message["id"]
        self._working.add(number)
        try:
            if number not in self._cancelled and not self._stopping:
                self._tell({"id": number} | self._told(message))
        finally:
            self._cancelled.discard(number)
            self._working.discard(number)

    def _told(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._answer(Problem.model_validate(message["problem"]), message["source"])
        except SandboxError as error:
            return {"error": str(error)}
        except Exception as error:  # one pair, whatever it met, must not end the others
            return {"error": f"the judge itself failed ({type(error).__name__}: {error}); please report it"}

    def _tell(self, answer: dict[str, Any]) -> None:
        with self._writing, contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps(answer) + "\n")
            self._out.flush()

    def _answer(self, problem: Problem, source: str) -> dict[str, Any]:
        candidate = candidate_of(source)
        require_tools(candidate.language)
        shared = self._shared(problem)
        try:
            with shared.starting:
                _ = shared.judge.reference
            built = shared.judge.build(candidate)
            try:
                with self._turn():
                    return {"report": report(shared.judge.evaluate(built))}
            finally:
                built.close()
        finally:
            self._release(shared)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until nothing else is timed on the device. Another thread waits for us, so that we can give up."""
        granted, done = threading.Event(), threading.Event()

        def hold() -> None:
            with self._timing, device_turn(self._device):
                granted.set()
                done.wait()

        threading.Thread(target=hold, daemon=True).start()
        try:
            while not granted.wait(0.02):
                if self._stopping:
                    raise MachineError("the judging was stopped")
            yield
        finally:
            done.set()

    def _shared(self, problem: Problem) -> Shared:
        with self._choosing:
            shared = self._judges.setdefault(problem.digest, Shared(problem, self._settings))
            self._judges.move_to_end(problem.digest)
            shared.users += 1
            return shared

    def _release(self, shared: Shared) -> None:
        """End the judges that have been idle longest, where too many are kept."""
        with self._choosing:
            shared.users -= 1
            idle = [digest for digest, one in self._judges.items() if one.users == 0]
            for digest in idle[: max(0, len(self._judges) - KEPT)]:
                self._judges.pop(digest).judge.close()


def main() -> None:
    """Serve until SIGTERM, or until the input ends since the caller is gone."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    settings = Settings.model_validate_json(sys.argv[2])
    become_a_judge(settings.threads)
    helper = Helper(int(sys.argv[1]), settings, out)
    try:
        for line in sys.stdin:
            helper.take(json.loads(line))
    except Leaving:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not helper.stop():
        os._exit(0)  # a thread hangs; the children's keepers end them once this process is gone
    helper.close()


class Leaving(Exception):
    """SIGTERM has come."""


def _leave(*_: object) -> None:
    raise Leaving


if __name__ == "__main__":
    main()
