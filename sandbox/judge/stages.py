"""A candidate on its way to a verdict: its folder, its children, the stage it has reached and what stopped it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kernelwright.sandbox.build import diagnose
from kernelwright.sandbox.build.build_store import FailedBuild
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session
from kernelwright.sandbox.calls.timeouts import CandidateLate
from kernelwright.sandbox.jail.children import ChildGone, ChildLate
from kernelwright.sandbox.judge.standing import Stand, close_all
from kernelwright.sandbox.machine.workfolder import WorkFolder
from kernelwright.sandbox.tensors.process_memory import MemoryReadError
from kernelwright.sandbox.verdict.errors import StageFailed
from kernelwright.sandbox.verdict.findings import Look
from kernelwright.sandbox.verdict.verdicts import Authenticity, Candidate, Stage


class Built:
    """A candidate whose build is done (or failed), waiting for its turn on the device. Close it."""

    def __init__(self, candidate: Candidate, stand: Stand | None = None) -> None:
        self.candidate = candidate
        self.stand = stand or Stand()
        """Its folder, and the workers that were started ahead."""
        self.worker: Session | None = None
        """The one that is at work, or will be first: it stands still until the build is done."""
        self.failure: StageFailed | None = None
        self.key = ""
        """Under which digest the store of finished builds keeps it; empty before it is known."""
        self.seconds: dict[str, float] = {}
        """By stage; `headers` is no stage, but how long parts of torch's light header were made beside the build."""
        self.ways: tuple[str, ...] = ()
        """How its extensions were built, as the builder tells it."""
        self.failed_builds: tuple[FailedBuild, ...] = ()
        """Those of its extensions that could not be built, as the builder tells it."""
        self.late_builds = 0
        """Extensions that were asked for only in a worker."""
        self.deterministic: bool | None = None
        self.authenticity: Authenticity | None = None
        """From a run that was observed; None until there was one."""
        self.not_met: tuple[str, ...] = ()
        """What a screen leaves to whoever judges it in full."""
        self.look: Look | None = None
        """What else was seen on a device; None where there was nothing."""

    @property
    def folder(self) -> WorkFolder:
        """What its children may write to."""
        return self.stand.folder

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage, and turn what goes wrong with the child in it into this stage's failure."""
        start = time.perf_counter()
        try:
            yield
        except Refused as error:
            if error.compiling:
                raise StageFailed(
                    "build", diagnose.build_reason(error.log), diagnose.trim_build_log(error.log)
                ) from None
            raise StageFailed(name, error.reason, diagnose.trim_traceback(error.log)) from None
        except CandidateLate as error:
            raise StageFailed("load", str(error)) from None
        except ChildLate:
            raise StageFailed(name, f"no answer within {time.perf_counter() - start:.0f} s") from None
        except (ChildGone, MemoryReadError, Misbehaved) as error:
            raise StageFailed(name, str(error)) from None
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def log_after(self, stop: "StageFailed") -> str:
        """The log of the failure, and what a build that was hidden said, since that may be why."""
        if stop.stage == "build":
            self.failed_builds = ()  # nothing was hidden: it is told as the failure
        return "\n".join([part for part in (stop.log, *(failed.log for failed in self.failed_builds[:1])) if part])

    def end_workers(self) -> None:
        """End the one that is there and those that were started ahead."""
        ending = [*([] if self.worker is None else [self.worker]), *self.stand.sessions]
        self.worker, self.stand.sessions = None, []
        close_all(ending)

    def close(self) -> None:
        """End the workers and remove the work folder."""
        with ExitStack() as all_of_it:
            all_of_it.callback(self.folder.close)
            all_of_it.callback(self.end_workers)
