"""`Journal`: the one place where a search writes; each event goes to the log, into the view and to the watcher."""

from collections.abc import Callable, Iterable, Sequence

from kernelwright.agent.log.events import Body, Event, Resumed
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View, fold


class Journal:
    """The log of one problem and its view, always in step."""

    def __init__(self, problem: str, log: RunLog, on_event: Callable[[Event], None]) -> None:
        self.texts = log
        self.view: View = fold(problem, log.events(problem))
        self._on_event = on_event
        self._resumes = bool(self.view.attempts)

    def write(self, body: Body, blobs: Iterable[str] = ()) -> None:
        """Commit one event with its texts."""
        self.write_all([(body, blobs)])

    def write_all(self, entries: Sequence[tuple[Body, Iterable[str]]]) -> None:
        """Commit several, all of them or none. Before the first step of a search that goes on, that it does is told."""
        if self._resumes:
            self._resumes = False
            entries = [(Resumed(problem=self.view.problem), ()), *entries]
        for event in self.texts.extend(entries):
            self.view = self.view.after(event)
            self._on_event(event)
