"""The references of one problem: as many eager processes as there are worker pairs, and one for each compiled mode."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import ON_HOST, Backend, Needs, references_kept
from kernelwright.sandbox.calls.reference import Form, Precision, ReferenceSession
from kernelwright.sandbox.correctness.compare import IEEE, KERNELBENCH, Shares
from kernelwright.sandbox.correctness.families import FAMILIES, Domain
from kernelwright.sandbox.jail.zygote import ZYGOTES
from kernelwright.sandbox.machine import free_bytes
from kernelwright.sandbox.storage import Bounds, FolderStore, Store, digest_of, status_key
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baseline_facts import BaselineTimes, Spreads, by_worker, processor_kind
from kernelwright.sandbox.toolchain import require_python_header
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError
from kernelwright.sandbox.verdict.settings import Accuracy, CompileMode, JudgeSettings
from kernelwright.sandbox.verdict.statistics import KnownSpread
from kernelwright.sandbox.verdict.verdicts import Measurement, ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder, shared_environment

Reference = TypeVar("Reference", bound=ReferenceSession)
LOG = logging.getLogger("kernelwright.sandbox.timing")
LIMIT_BYTES = 2 * 2**30
BOUNDS = Bounds(bytes=2**29, files=8192, depth=8)
FORMAT = "3"


class CompilerFolder(WorkFolder):
    """A work folder with one more place to write to, the cache of torch's compiler.

    Triton's own cache stays where it is in every work folder: it names its files by absolute paths, so it is of no use
    elsewhere, and the compiler's cache holds all kernels that it has chosen.
    """

    imports = ("torch._dynamo", "torch._inductor.compile_fx")
    """The compiler itself, which takes seconds to import: once in place of for each problem."""

    def __init__(self) -> None:
        super().__init__()
        self.compiler = self.path / "compiler"
        self.compiler.mkdir(mode=0o700)

    def places(self, *without: str) -> list[str]:
        return [*super().places(*without), str(self.compiler)]

    def environment(self, threads: int, steady: bool = False) -> dict[str, str]:
        """As of any work folder, with the place of torch.compile's cache."""
        return super().environment(threads, steady) | {"TORCHINDUCTOR_CACHE_DIR": str(self.compiler)}

    def give_to(self, user: int) -> None:
        """As of any work folder, with all that was put into the cache; no child has run yet, so there are no links."""
        is_new = self.user is None
        super().give_to(user)
        for top, folders, files in os.walk(self.compiler) if is_new else ():
            for name in (*folders, *files):
                os.chown(Path(top) / name, user, user, follow_symlinks=False)


class CompiledStore(FolderStore):
    """Output of torch.compile, by all that it depends on; the least recently used goes first."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("compiled", limit_bytes, BOUNDS)

    @staticmethod
    def key(problem: Problem, backend: Backend, mode: CompileMode, precision: Precision = "strict") -> str:
        """Problem, device, versions, mode; and the number of threads, which is written into code for processors.

        Raises `MachineError` where the device cannot be named.
        """
        place, baseline = backend.place, Form(mode, precision=precision).baseline
        if place is None:
            raise MachineError("the device cannot be named; see `kernelwright doctor`")
        facts = [FORMAT, problem.digest, baseline, str(backend.settings.threads), processor_kind(), place.device]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(place.versions.items())])


def begin_compiler(settings: JudgeSettings) -> None:
    """Have the process import the compiler that compiled references are forked from, while others start."""
    ZYGOTES.find(shared_environment(settings.threads, steady=True), CompilerFolder.imports)


def compiled_reference(
    problem: Problem, backend: Backend, form: Form, start: Callable[[WorkFolder], Reference]
) -> Reference:
    """Start the reference of a compiled form; it has compiled, or found what was compiled before.

    Raises what `start` does, in words that name the mode, and `MachineError` without Python's headers.
    """
    require_python_header("torch.compile")
    assert form.compiled is not None
    store, folder = CompiledStore(), CompilerFolder()
    key = store.key(problem, backend, form.compiled, form.precision)
    store.restore(key, folder.compiler)
    session = start(folder)
    try:
        session.compile()
        if session.compilation.is_new:
            made = session.compilation.made
            LOG.info("torch.compile (%s) compiled %d graphs again and replaces the stored ones", form.compiled, made)
            store.forget(key)  # it was of no use, or there was none
            store.keep(key, folder.compiler)
    except BaseException:
        session.close()
        raise
    return session


FIRST_LOOK = 3
"""A worker pair has three: the baseline, the other one of its placebo, and the source of values."""
WORTH_TWO = 2**22
"""Bytes of inputs below which they are drawn in less time than it takes to start another process for that."""
AS_CONSTRUCTED = 1
"""The one process that keeps the constructor's weights, where there are several; the others change them."""
PERMITTING: dict[Accuracy, Precision] = {"default": "shipped", "tf32": "tf32"}
"""By accuracy, the precision policy of the reference whose errors a candidate may have too."""
REASON_LENGTH = 200
"""Characters of the reason why a baseline is unavailable."""


class OtherBaseline(NamedTuple):
    """A baseline beside strict eager."""

    name: str
    session: ReferenceSession
    precision: Precision | None
    """The policy under which a process of strict eager is called; None for a process of its own."""


class Baselines:
    """Reference processes, each started when first needed and kept for the problem's next candidates. Close it.

    Where memory does not hold as many as there are worker pairs, those that were used least recently end first.
    """

    own_bytes = ON_HOST
    """Memory that processes take on their own account, where references have theirs."""

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.problem, self.backend, self._settings = problem, backend, backend.settings
        self._eager: dict[int, ReferenceSession] = {}
        """Living ones by number, the most recently used last."""
        self._others: dict[Form, ReferenceSession] = {}
        """Processes of other forms."""
        self.unavailable: dict[str, str] = {}
        """Optional baselines that cannot run for this problem, by name, with the reason in one line."""
        self._kept: int | None = None
        self._status: ProblemStatus | None = None
        self._statuses = Store("statuses")
        self._ways: set[str] = set()
        self.is_seeded = False
        """Whether the reference draws in `forward`, so that both sides are seeded alike before each call."""
        self._choosing = threading.Lock()
        self._closed = False
        self._spreads = Spreads(problem, backend)
        self._compared: set[frozenset[int]] = set()
        """Pairs of processes whose ratio is kept already."""
        self._candidates = 0
        self._order = list(range(backend.settings.worker_pairs))
        """The processes of the present candidate's worker pairs."""
        self.domain = Domain(problem.values.without)
        """The families of values that candidates are judged on."""

    def eager(self, number: int) -> ReferenceSession:
        """The baseline of worker pair `number`; pairs beyond the settings' `worker_pairs` start over with the first."""
        index = self._index(number)
        with self._choosing:
            found = self._eager.pop(index, None)
            if found is not None:  # now it is the most recently used
                self._eager[index] = found
        if found is None:
            while self._eager and len(self._eager) >= self.kept:
                self._end(next(iter(self._eager)))
            changed = index != AS_CONSTRUCTED and "weights" not in self._settings.without
            form = Form(changed_weights=changed)
            found = self._open(form)
            with self._choosing:
                late = self._closed
                if not late:
                    self._eager[index] = found
            if late:  # a thread that nobody waits for any more started it
                found.close()
                raise MachineError(f"the judging of {self.problem.name} was ended")
        return found

    def _open(self, form: Form, folder: WorkFolder | None = None) -> ReferenceSession:
        """Start the process of a form."""
        sample = self.first.sample if self._eager else None
        return ReferenceSession(self.problem, self.backend, form, folder, sample)

    def _index(self, number: int) -> int:
        return self._order[number % len(self._order)]

    def next_candidate(self) -> KnownSpread | None:
        """Another one is timed; what its interval rests on beside samples, None where these speak alone.

        Where a candidate may end after one worker pair each begins with another process of the baseline, or all would
        share that one's luck; never with the one whose weights a constructor's habits would do for. Those that live
        come next, so that its first worker pair waits for one start at most, however few were needed before it.
        """
        if self._settings.effort == "rank":
            return None
        starts = [index for index in range(self._settings.worker_pairs) if index != AS_CONSTRUCTED]
        if self.kept == self._settings.worker_pairs:
            first, pairs = starts[self._candidates % len(starts)], self._settings.worker_pairs
            others = [(first - step) % pairs for step in range(1, pairs)]  # whom an earlier candidate began with
            with self._choosing:
                self._order = [first, *sorted(others, key=lambda index: index not in self._eager)]
            self._candidates += 1
        return self._spreads.known()

    def placebo(self, number: int) -> ReferenceSession | None:
        """Another process of the baseline for this worker pair; None without memory for it, or where it is disabled."""
        if self._settings.worker_pairs == 1 or "placebo" in self._settings.without or self.kept == 1:
            return None
        return self._beside(number, number + 1)

    def sources(self, number: int) -> list[ReferenceSession]:
        """References that draw the values of this worker pair: if memory allows, other ones than those that are timed.

        A reference that has drawn values would start the call with warm caches. On a processor there are two, since
        drawing takes most of the time between two timed calls.
        """
        if self.kept == 1:
            return [self.eager(number)]
        first = number + min(2, self.kept - 1)
        return [self._beside(number, other) for other in (first, first + 1)[: 2 if self.draws_twice else 1]]

    @property
    def draws_twice(self) -> bool:
        """Return whether two processes draw values at once, which is worth it where that takes long; all live then."""
        settings, sample = self._settings, self.first.sample
        is_long = sample is not None and sample.size >= WORTH_TWO and self.first.is_small
        return is_long and settings.worker_pairs > FIRST_LOOK and len(settings.cores) > 1

    def _beside(self, number: int, other: int) -> ReferenceSession:
        """Another one that does not take the place of this pair's own."""
        self.eager(number)
        found = self.eager(other)
        self.eager(number)
        return found

    @property
    def kept(self) -> int:
        """Number of references that may live at once, by the memory of a call and of the machine."""
        if self._kept is None:
            wanted, (needs, there) = self._settings.worker_pairs, self._needs_and_room()
            self._kept = wanted if needs is None else max(1, references_kept(needs, wanted, there, self.own_bytes))
            if self._kept < wanted:
                LOG.info("%s: memory holds %d of %d references at once", self.problem.name, self._kept, wanted)
        return self._kept

    def _needs_and_room(self) -> tuple[Needs | None, int]:
        """Memory of a call, None where that is next to nothing, and the bytes that there are."""
        return None if self.first.is_small else self.first.plan, free_bytes()

    @property
    def is_tight(self) -> bool:
        """Return whether references start one after the other for want of memory, and no worker beside another."""
        return self.kept < self._settings.worker_pairs

    def start(self) -> None:
        """Have the eager processes run that are needed in any case, started side by side where memory holds all."""
        first_look = FIRST_LOOK + 1 if self.draws_twice else FIRST_LOOK
        wanted = self._settings.worker_pairs if self._settings.effort == "rank" else first_look
        numbers = range(min(self.kept, self._settings.worker_pairs, wanted))
        works = [partial(self.eager, number) for number in numbers]
        if self.is_tight:
            for work in works:
                work()
        else:
            self._start_together(works)

    def _start_together(self, works: Sequence[Callable[[], object]]) -> None:
        self.backend.in_parallel(works, self.backend.most_parallel)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The families that it is not judged on, so far as is known: the problem's own word first."""
        if self._settings.accuracy == KERNELBENCH:
            return FAMILIES
        return (*self.problem.values.without, *self.domain.outside)

    def compiled(self) -> list[ReferenceSession]:
        """One for each mode of torch.compile that the settings name, its compilation done."""
        return [self._other(Form(mode)) for mode in dict.fromkeys(self._settings.compiled)]

    def _other(self, form: Form) -> ReferenceSession:
        """The process of this form, which has been called once."""
        if form not in self._others:
            if form.compiled is not None:
                start = partial(self._open, form)
                self._others[form] = compiled_reference(self.problem, self.backend, form, start)
            else:
                self._others[form] = found = self._open(form)
                found.call_ms(found.draw())
        return self._others[form]

    def others(self, number: int) -> list[OtherBaseline]:
        """Every baseline beside strict eager for worker pair `number`: here compiled modes alone.

        Raises `BrokenProblem` for a mode of the settings that does not compile. What is optional and fails is left out
        and is noted in `unavailable`.
        """
        return [OtherBaseline(session.form.baseline, session, None) for session in self.compiled()]

    def _available(self, forms: Iterable[Form]) -> list[OtherBaseline]:
        """Those that run; each of the others is tried once."""
        found = []
        for form in forms:
            if form.baseline in self.unavailable:
                continue
            try:
                found.append(OtherBaseline(form.baseline, self._other(form), None))
            except BrokenProblem as error:
                self.unavailable[form.baseline] = " ".join(str(error).split())[:REASON_LENGTH]
                if form in self._others:
                    self._others.pop(form).close()
        return found

    def accuracy(self) -> tuple[dict[str, Shares], tuple[str, ...]]:
        """Errors of the others by name, as shares of the bounds of `ieee`, and the names of those that exceed what the
        settings' accuracy allows; nothing where none is less accurate.
        """
        return {}, ()

    def allowed(self, accuracy: Accuracy, find: bool = True) -> Shares | None:
        """The largest errors of a candidate, as shares of the bounds of `ieee`, that an accuracy allows.

        `find`: without, None where that takes calls of the reference. Where an accuracy's precision switches change
        nothing, it allows what `ieee` does.
        """
        return {KERNELBENCH: 1.0} if accuracy == KERNELBENCH else IEEE

    def remember(self, measurement: Measurement) -> None:
        """Store the times of the baselines, for tables, and how far their processes differ."""
        if self.backend.place is not None:
            BaselineTimes(self.problem).keep(measurement, self.backend.place)
        ratios = {
            frozenset((self._index(number), self._index(number + 1))): ratio
            for number, ratio in by_worker(measurement.placebo).items()
        }
        self._spreads.keep([ratio for pair, ratio in ratios.items() if pair not in self._compared])
        self._compared |= ratios.keys()

    @property
    def first(self) -> ReferenceSession:
        """One that describes the problem: arguments, weights. The first of those that live; started where none does."""
        with self._choosing:
            found = self._eager[min(self._eager)] if self._eager else None
        return found or self.eager(0)

    @cached_property
    def arguments(self) -> Values:
        return self.first.arguments

    @property
    def status(self) -> ProblemStatus:
        """Return whether trivial answers fail on this problem; found once, and kept for other judges too."""
        self._status = found = self.known_status or self._found_status()
        return found

    def _found_status(self) -> ProblemStatus:
        found = self.first.status
        self._statuses.put(self._status_key, found.model_dump(mode="json"))
        return found

    @property
    def _status_key(self) -> dict[str, object]:
        accuracy = {} if self._settings.accuracy == "ieee" else {"accuracy": self._settings.accuracy}
        return status_key(self.problem.digest, self.backend.kind) | accuracy

    @property
    def known_status(self) -> ProblemStatus | None:
        """The same where it was found before: what fails does not wait for it."""
        if self._status is None:
            with suppress(ValidationError):
                self._status = ProblemStatus.model_validate(self._statuses.get(self._status_key))
        return self._status

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways in which float64 results were computed so far, where there is more than one."""
        living = {way for session in self._eager.values() for way in session.exact_ways}
        return tuple(sorted(self._ways | living))

    def _end(self, index: int) -> None:
        with self._choosing:
            session = self._eager.pop(index)
        self._ways |= set(session.exact_ways)
        session.close()

    def close(self) -> None:
        with self._choosing:
            self._closed = True
        ending = [*self._eager.values(), *self._others.values()]
        self._ways = set(self.exact_ways)
        self._eager.clear()
        self._others.clear()
        self.backend.in_parallel([session.close for session in ending])
