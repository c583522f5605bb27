"""The references of one problem: as many eager processes as there are worker pairs, and one for each compiled mode."""

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, get_args

from pydantic import ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import all_at_once
from kernelwright.sandbox.calls.device import Timed
from kernelwright.sandbox.calls.memory_planning import ON_DEVICE, ON_HOST, Needs, holds_another, references_kept
from kernelwright.sandbox.calls.reference import Form, Precision, ReferenceSession
from kernelwright.sandbox.correctness.compare import IEEE, KERNELBENCH, Shares, are_within
from kernelwright.sandbox.correctness.families import FAMILIES, Domain
from kernelwright.sandbox.storage import Store, baseline_key, status_key
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baseline_facts import BaselineErrors, BaselineTimes, accuracy_of, place_of
from kernelwright.sandbox.timing.compiled import begin_compiler, compiled_reference
from kernelwright.sandbox.timing.samples import Spreads, by_worker
from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError
from kernelwright.sandbox.verdict.memory import free_bytes
from kernelwright.sandbox.verdict.settings import Accuracy, Settings
from kernelwright.sandbox.verdict.statistics import KnownSpread
from kernelwright.sandbox.verdict.verdicts import Measurement, ProblemStatus

if TYPE_CHECKING:
    from kernelwright.sandbox.calls.device import SharedInputs

AT_ONCE = 2
"""On a processor so many start at a time: more would only wait for each other's memory."""
FIRST_LOOK = 3
"""A worker pair has three: the baseline, the other one of its placebo, and the source of values."""
WORTH_TWO = 2**22
"""Bytes of inputs below which they are drawn in less time than it takes to start another process for that."""
AS_CONSTRUCTED = 1
"""The one process that keeps the constructor's weights, where there are several; the others change them."""
PERMITTING: dict[Accuracy, Precision] = {"default": "shipped", "tf32": "tf32"}
"""By accuracy, the precision policy of the reference whose errors a candidate may have too."""
LUCK = 2.0
"""A candidate may be off by so many times those errors, which are of a single draw for each input distribution."""
REASON_LENGTH = 200
"""Characters of the reason why a baseline is unavailable."""
LOG = logging.getLogger("kernelwright.sandbox.timing")


class OtherBaseline(NamedTuple):
    """A baseline beside strict eager."""

    name: str
    session: ReferenceSession
    precision: Precision | None
    """The policy under which a process of strict eager is called; None for a process of its own."""

    def call(self, values: Values) -> Timed:
        if self.precision is None:
            return self.session.call(values)
        return self.session.under(self.precision, values, in_place=False)


class Baselines:
    """Reference processes, each started when first needed and kept for the problem's next candidates. Close it.

    Where memory does not hold as many as there are worker pairs, those that were used least recently end first.
    """

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self._settings = problem, settings
        self._eager: dict[int, ReferenceSession] = {}
        """Living ones by number, the most recently used last."""
        self._others: dict[Form, ReferenceSession] = {}
        """Processes of other forms."""
        self.unavailable: dict[str, str] = {}
        """Optional baselines that cannot run for this problem, by name, with the reason in one line."""
        self._inputs: SharedInputs | None = None
        self._kept: int | None = None
        self._status: ProblemStatus | None = None
        self._statuses = Store("statuses")
        self._ways: set[str] = set()
        self.is_seeded = False
        """Whether the reference draws in `forward`, so that both sides are seeded alike before each call."""
        self._choosing = threading.Lock()
        self._closed = False
        self._spreads = Spreads(problem, settings)
        self._compared: set[frozenset[int]] = set()
        """Pairs of processes whose ratio is kept already."""
        self._candidates = 0
        self._order = list(range(settings.worker_pairs))
        """The processes of the present candidate's worker pairs."""
        if settings.compiled and settings.gpu:  # on a processor it would be heard by whoever is timed now
            begin_compiler(settings)
        self.domain = Domain(problem.values.without)
        """The families of values that candidates are judged on."""

    def eager(self, number: int) -> ReferenceSession:
        """The baseline of worker pair `number`; pairs beyond the settings' `worker_pairs` start over with the first."""
        index = self._index(number)
        found = self._living(index)
        if found is None:
            while self._eager and len(self._eager) >= self.kept:
                self._end(next(iter(self._eager)))
            changed = index != AS_CONSTRUCTED and "weights" not in self._settings.without
            form = Form(changed_weights=changed)
            found = ReferenceSession(self.problem, self._settings, form, inputs=self._shared_inputs())
            with self._choosing:
                late = self._closed
                if not late:
                    self._eager[index] = found
            if late:  # a thread that nobody waits for any more started it
                found.close()
                raise MachineError(f"the judging of {self.problem.name} was ended")
        return found

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

    def _living(self, index: int) -> ReferenceSession | None:
        """The one of this number, which is now the most recently used."""
        with self._choosing:
            found = self._eager.pop(index, None)
            if found is not None:
                self._eager[index] = found
        return found

    def placebo(self, number: int) -> ReferenceSession | None:
        """Another process of the baseline for this worker pair; None where there is no room, or no wish, for it."""
        if self._settings.worker_pairs == 1 or "placebo" in self._settings.without or self.kept == 1:
            return None
        return self._beside(number, number + 1)

    def sources(self, number: int) -> list[ReferenceSession]:
        """Who draws the values of this worker pair: where there is room, processes that are not timed on them.

        They would come to the call with warm caches. On a processor, where to draw takes most of the time between two
        timed calls, there are two.
        """
        if self.kept == 1:
            return [self.eager(number)]
        first = number + min(2, self.kept - 1)
        return [self._beside(number, other) for other in (first, first + 1)[: 2 if self.draws_twice else 1]]

    @property
    def draws_twice(self) -> bool:
        """Whether two processes draw values at once, which is worth it where that takes long; all live then."""
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
        """How many references may live at once, by what a call takes of memory and what there is."""
        if self._kept is None:
            wanted, (needs, there) = self._settings.worker_pairs, self._needs_and_room()
            own = ON_DEVICE if self._settings.gpu else ON_HOST
            self._kept = wanted if needs is None else max(1, references_kept(needs, wanted, there, own))
            if self._kept < wanted:
                LOG.info("%s: memory holds %d of %d references at once", self.problem.name, self._kept, wanted)
        return self._kept

    @property
    def has_room_for_two(self) -> bool:
        """Whether on a device another worker may be ready beside the one at work, which has nothing but its process."""
        needs, there = self._needs_and_room() if self._settings.gpu else (None, 0)
        return needs is not None and holds_another(needs, self.kept, there, ON_DEVICE)

    def _needs_and_room(self) -> tuple[Needs | None, int]:
        if not self._settings.gpu:
            return None if self.first.is_small else self.first.plan, free_bytes()
        from kernelwright.sandbox.calls.device import device_of

        return self.first.needs, device_of(self._settings).total_bytes()

    def _shared_inputs(self) -> "SharedInputs | Values | None":
        if not self._settings.gpu:
            return self.first.sample if self._eager else None
        if self._inputs is None:
            from kernelwright.sandbox.calls.device import SharedInputs

            self._inputs = SharedInputs()
        return self._inputs

    def start(self) -> None:
        """Have the eager processes run that are needed in any case, started side by side where memory holds all; on a
        device, while it is held.
        """
        first_look = FIRST_LOOK + 1 if self.draws_twice else FIRST_LOOK
        wanted = self._settings.worker_pairs if self._settings.effort == "rank" else first_look
        numbers = range(min(self.kept, self._settings.worker_pairs, wanted))
        is_tight = self._settings.gpu and self.first.needs.is_large
        if is_tight or self.kept < self._settings.worker_pairs:
            for number in numbers:
                self.eager(number)
            return
        works = [partial(self.eager, number) for number in numbers]
        all_at_once(self._settings, works, None if self._settings.gpu else AT_ONCE)

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
            problem, settings, inputs = self.problem, self._settings, self._shared_inputs()
            if form.compiled is not None:
                self._others[form] = compiled_reference(problem, settings, form.compiled, inputs, form.precision)
            else:
                self._others[form] = found = ReferenceSession(problem, settings, form, inputs=inputs)
                found.call_ms(found.draw())
        return self._others[form]

    def others(self, number: int) -> list[OtherBaseline]:
        """Every baseline beside strict eager for worker pair `number`; on a processor compiled modes alone.

        Raises `BrokenProblem` for a mode of the settings that does not compile. What is optional and fails is left out
        and stands in `unavailable`.
        """
        found = [OtherBaseline(session.form.baseline, session, None) for session in self.compiled()]
        if not self._settings.gpu:
            return found
        eager, groups = self.eager(number), self._settings.baselines
        found += [OtherBaseline(Form(precision=one).baseline, eager, one) for one in self.policies if one in groups]
        return found + self._available(self._optional())

    def _optional(self) -> list[Form]:
        """Forms with processes of their own that the problem has use of."""
        groups, modes = self._settings.baselines, dict.fromkeys(self._settings.compiled)
        found = [Form(mode, precision=one) for one in self.policies if f"compiled-{one}" in groups for mode in modes]
        # What a call changes in place would be the inputs that it has converted.
        converts = "channels_last" in groups and self.first.is_spatial and not self.first.changes
        return found + ([Form(channels_last=True)] if converts else [])

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
        settings' accuracy allows.

        Found in untimed calls, once a problem, device and versions. Nothing on a processor, and where the reference
        draws in `forward`.
        """
        if not self._settings.gpu or self.is_seeded:
            return {}, ()
        number = self._order.index(min(self._eager, default=0))
        eager, others = self.eager(number), self.others(number)
        known = {other.name: self._known_errors(other.name) for other in others}
        missing = [other for other in others if known[other.name] is None]
        known |= self._found_errors([one for one in missing if one.precision or one.session.adopt(eager)], eager)
        found = {name: one for name, one in known.items() if one is not None}
        asked = self._settings.accuracy
        allowed = self.allowed(asked) or IEEE
        less = [
            name
            for name, (errors, is_equal) in found.items()
            if not (is_equal if asked == "ieee" else are_within(errors, allowed))
        ]
        return {name: one.errors for name, one in found.items()}, tuple(less)

    def _known_errors(self, name: str) -> BaselineErrors | None:
        found = Store("baseline-accuracy").get(baseline_key(self.problem.digest, *place_of(self._settings), name))
        return None if found is None else BaselineErrors(*found)

    def _found_errors(self, others: Sequence[OtherBaseline], eager: ReferenceSession) -> dict[str, BaselineErrors]:
        found = accuracy_of({one.name: one.call for one in others}, eager, self.domain) if others else {}
        for name, errors in found.items():
            key = baseline_key(self.problem.digest, *place_of(self._settings), name)
            Store("baseline-accuracy").put(key, errors)
        return found

    def allowed(self, accuracy: Accuracy, find: bool = True) -> Shares | None:
        """The largest errors of a candidate, as shares of the bounds of `ieee`, that an accuracy allows.

        `find`: without, None where that takes calls of the reference. Where an accuracy's precision switches change
        nothing, as on a processor, it allows what `ieee` does.
        """
        if accuracy == KERNELBENCH:
            return {KERNELBENCH: 1.0}
        policy = PERMITTING.get(accuracy)
        if policy is None or not self._settings.gpu or self.is_seeded:
            return IEEE
        name = Form(precision=policy).baseline
        found = self._known_errors(name)
        if found is None and find:
            eager = self.first
            if eager.is_random or policy not in self.policies:
                return IEEE
            found = self._found_errors([OtherBaseline(name, eager, policy)], eager)[name]
        if found is None:
            return None
        return {measure: max(1.0, LUCK * found.errors.get(measure, 0.0)) for measure in IEEE}

    def remember(self, measurement: Measurement) -> None:
        """Keep what each of them took, for tables, and how far they are apart."""
        BaselineTimes(self.problem).keep(measurement, self._settings)
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
        """Whether trivial answers fail on this problem; found once, and kept for other judges too."""
        self._status = found = self.known_status or self._found_status()
        return found

    def _found_status(self) -> ProblemStatus:
        found = self.first.status
        self._statuses.put(self._status_key, found.model_dump(mode="json"))
        return found

    @property
    def _status_key(self) -> dict[str, object]:
        accuracy = {} if self._settings.accuracy == "ieee" else {"accuracy": self._settings.accuracy}
        return status_key(self.problem.digest, "cuda" if self._settings.gpu else "cpu") | accuracy

    @property
    def known_status(self) -> ProblemStatus | None:
        """The same where it was found before: what fails does not wait for it."""
        if self._status is None:
            with suppress(ValidationError):
                self._status = ProblemStatus.model_validate(self._statuses.get(self._status_key))
        return self._status

    @cached_property
    def policies(self) -> tuple[Precision, ...]:
        """On a device: precision policies that change what strict eager gives, bit by bit."""
        values, one, problem = self.first.draw(), self.first, self.problem
        strict, tried = one.call(values).output, get_args(Precision)[1:]
        if problem.precision != "strict" or problem.dtype not in (None, "float32"):
            tried = tried[:1]
        return tuple(policy for policy in tried if one.under(policy, values).output != strict)

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """On a device: how float64 results were computed so far."""
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
        all_at_once(self._settings, [session.close for session in ending])
        if self._inputs is not None:
            self._inputs.close()
            self._inputs = None
