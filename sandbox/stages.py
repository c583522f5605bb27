"""A candidate on its way to a verdict: its folder, its children, the stage it has reached and what stopped it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sandbox import diagnose
from sandbox.children import ChildGone, ChildLate
from sandbox.gpu.findings import Look
from sandbox.peek import PeekError
from sandbox.sessions import Misbehaved, Refused, Session
from sandbox.verdict import Authenticity, Candidate, Stage
from sandbox.workfolder import WorkFolder


class Stopped(Exception):
    """A stage ended the judging: stage, reason, log."""

    def __init__(self, stage: Stage, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.stage, self.reason, self.log = stage, reason, log


class Built:
    """A candidate whose build is done (or failed), waiting for its turn on the device. Close it."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.folder = WorkFolder()
        self.worker: Session | None = None
        """Started beside the builder, so that both import torch at once; it stands still until the build is done."""
        self.next: Session | None = None
        """The worker after this one, where it was started ahead."""
        self.failure: Stopped | None = None
        self.key = ""
        """Under which digest the store of finished builds keeps it; empty before it is known."""
        self.seconds: dict[str, float] = {}
        self.ways: tuple[str, ...] = ()
        """How its extensions were built, as the builder tells it."""
        self.deterministic: bool | None = None
        self.authenticity: Authenticity | None = None
        """From a run that was observed; None until there was one."""
        self.look: Look | None = None
        """What else was seen on a device; None where there was nothing."""

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage, and turn what goes wrong with the child in it into this stage's failure."""
        start = time.perf_counter()
        try:
            yield
        except Refused as error:
            raise Stopped(name, error.reason, diagnose.trim_traceback(error.log)) from None
        except ChildLate:
            raise Stopped(name, f"no answer within {time.perf_counter() - start:.0f} s") from None
        except (ChildGone, PeekError, Misbehaved) as error:
            raise Stopped(name, str(error)) from None
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def close(self) -> None:
        """End the workers and remove the work folder."""
        with ExitStack() as all_of_it:
            all_of_it.callback(self.folder.close)
            for session in (self.next, self.worker):
                if session is not None:
                    all_of_it.callback(session.close)
