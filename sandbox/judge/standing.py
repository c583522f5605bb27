"""Workers that stand before they are needed: with torch, on a device with its context, and with nobody's code in them.

Each is used once, for one candidate. Those of one candidate share a work folder, which they have seen since they were
started, and no other; it is empty until the candidate comes. So in a worker that stands there is nothing of a problem,
of a candidate before it or of the one to come, nor can it see any.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kernelwright.sandbox.calls.backend import all_at_once, open_session
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.machine.workfolder import WorkFolder
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import Settings

LOG = logging.getLogger("kernelwright.sandbox.judge")
AHEAD = 2
"""So many processes are started together on a device, what most verdicts need. Only the first gets ready before it is
due: the driver makes contexts one after the other, half a second each, however many wait for theirs, and what is wrong
needs but one.
"""
MEASURING = {
    *("effort", "warm_up", "worker_pairs", "min_pairs", "max_pairs", "time_budget_s", "interval_target"),
    *("compiled", "baselines", "sanitize", "profile"),
}
"""Settings that no worker knows of."""


class Stand:
    """The folder of one candidate, whoever that will be, and workers that were started in it. Close it."""

    def __init__(self) -> None:
        self.folder = WorkFolder()
        self.sessions: list[Session] = []
        """Those that stand, the next to be used first."""

    def start_first(self, settings: Settings) -> None:
        """Start what any candidate needs and does not stand; on a processor each more would be heard."""
        wanted = min(AHEAD, settings.worker_pairs) if settings.gpu else 1
        self.start(settings, wanted - len(self.sessions))

    def take(self, settings: Settings) -> Session:
        """The next one, which greets; where none stands, it is started."""
        if not self.sessions:
            self.start(settings, 1)
        self.sessions[0].greet()
        return self.sessions.pop(0)

    def start(self, settings: Settings, count: int) -> None:
        """Begin to start so many more; on a device nothing is done yet."""
        for _ in range(count):
            self.sessions.append(open_session("worker", self.folder, settings))

    def come_up(self) -> None:
        """Wait until all have started."""
        for session in self.sessions:
            session.come_up()

    def close(self) -> None:
        """End those that stand, and remove the folder."""
        ending, self.sessions = self.sessions, []
        try:
            close_all(ending)
        finally:
            self.folder.close()


def close_all(sessions: Sequence[Session]) -> None:
    """End children side by side; each is waited for."""
    with ThreadPoolExecutor(max(1, len(sessions))) as pool:
        for done in [pool.submit(session.close) for session in sessions]:
            done.result()


class Spare:
    """A stand for the next candidate on a device, made while nothing is timed. For several threads; close it."""

    def __init__(self, settings: Settings, is_lasting: bool = True) -> None:
        """`is_lasting`: whether there is another candidate after the next."""
        self._settings, self.is_lasting = settings, is_lasting
        self._stand: Stand | None = None
        self._choosing = threading.Lock()
        self._forget: Callable[[], None] | None = None
        self._is_closed = False

    def fits(self, settings: Settings) -> bool:
        """Whether what stands here is what these settings would start: they may differ in how much is measured."""
        return settings.model_dump(exclude=MEASURING) == self._settings.model_dump(exclude=MEASURING)

    def begin(self) -> None:
        """Start the processes of one, unless there is one."""
        if self._stand is not None or self._is_closed:
            return
        stand = Stand()
        try:
            stand.start_first(self._settings)
            stand.come_up()
        except BaseException:
            stand.close()
            raise
        self._keep(stand)

    def get_ready(self) -> None:
        """Have the first of them ready; hold the device. It is given up where memory runs short."""
        stand = self.take()
        if stand is None:
            return
        try:
            all_at_once(self._settings, [stand.sessions[0].greet])
        except BaseException:
            stand.close()
            raise
        self._keep(stand)
        if self._forget is None:
            from kernelwright.sandbox.calls.memory_relief import register

            self._forget = register(self.give_up, self._settings.ordinal)

    def make(self) -> None:
        """Both, in the background of something else: what goes wrong is met again, and told, by who needs one."""
        try:
            self.begin()
            self.get_ready()
        except SandboxError as error:
            LOG.info("no workers stand for the next candidate: %s", error)

    def take(self) -> Stand | None:
        """The one that there is, which is the caller's from now on."""
        with self._choosing:
            stand, self._stand = self._stand, None
        return stand

    def _keep(self, stand: Stand) -> None:
        with self._choosing:
            is_late = self._is_closed or self._stand is not None
            if not is_late:
                self._stand = stand
        if is_late:
            stand.close()

    def give_up(self) -> None:
        stand = self.take()
        if stand is not None:
            stand.close()

    def close(self) -> None:
        """End them, and have no more."""
        self._is_closed = True
        self.give_up()
        if self._forget is not None:
            self._forget()
            self._forget = None
