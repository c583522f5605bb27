"""The problem's own code in its own child: arguments, weights, inputs, expected values and the baseline's time."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.calls.memory_planning import CERTAIN_BYTES, Needs, planned, require_room
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session, Timed
from kernelwright.sandbox.correctness.compare import mismatch, tolerance_of
from kernelwright.sandbox.correctness.families import changed
from kernelwright.sandbox.correctness.lint import OVERALL, RunningReference, draws, quick_status
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.storage import Store, status_key
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, alone, poisoned
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.memory import gib
from kernelwright.sandbox.verdict.settings import CompileMode
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.models import constant_of
from kernelwright_child.wire import RESULT

PATIENCE = 10
"""A reference may take this many times a candidate's call limit: float64 is slow."""
COMPILING_S = 1200
"""For all compilation by torch.compile, which may try out dozens of kernels."""
Precision = Literal["strict", "shipped", "tf32"]
"""Torch's precision switches of a baseline: as the problem's policy says, torch's own defaults, or with TF32."""
SHIPPED: Precision = "shipped"
UNDER: dict[Precision, str] = {"strict": "", "shipped": " as shipped", "tf32": " tf32"}
RANDOM = (
    "two calls on the same values differ by more than rounding (dropout, or another draw in forward), so both sides "
    "are seeded alike before each call and only what draws in the same way can be right"
)
NEVER_ALIKE = (
    "{name} can not be judged: its reference answers otherwise on the same values under the same seed; let it draw by "
    "torch's default generator, and keep what calls go on from in parameters or buffers that are part of the state"
)


def operation(problem: Problem) -> str:
    """The question to workers for this problem: `call`, or `backward` where gradients are wanted too."""
    return "call" if problem.direction == "forward" else "backward"


class Form(NamedTuple):
    """Which reference: how its baseline is computed, and whether its weights are those of the constructor."""

    compiled: CompileMode | None = None
    changed_weights: bool = False
    precision: Precision = "strict"
    """The policy of the whole process."""
    channels_last: bool = False
    """Whether weights lie in channels_last, and inputs are converted to it in each call."""

    @property
    def baseline(self) -> str:
        name = "eager" if self.compiled is None else f"torch.compile {self.compiled}"
        return f"{name}{' channels_last' if self.channels_last else ''}{UNDER[self.precision]}"


PLAIN = Form()


class CompiledGraphs(NamedTuple):
    """Numbers of graphs that torch.compile has compiled, and that it found compiled before."""

    made: int
    found: int

    @property
    def is_new(self) -> bool:
        """Whether there is anything that was not there before."""
        return self.made > 0 or self.found == 0


class StatusSubject(RunningReference, Protocol):
    """A reference of which the problem's status can be found: all of it, or on a part of its inputs."""

    def reweighted(self) -> AbstractContextManager[Values]:
        """Give the model other weights within the block."""


class ReferenceSession:
    """The problem's own code in its own child: constructor arguments, weights, inputs, expected values, baseline."""

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        form: Form = PLAIN,
        folder: WorkFolder | None = None,
        sample: Values | None = None,
    ) -> None:
        """Of a compiled form, `compile` is due before the first call. The folder is removed with the child.

        `sample`: inputs that another reference of the problem has drawn, which show how they are laid out.
        """
        self.problem, self.backend, self.settings, self.form = problem, backend, backend.settings, form
        self.compilation = CompiledGraphs(0, 0)
        self._folder = folder or WorkFolder()
        self.sample = sample
        """Inputs as they are drawn, where those lie in memory of the processor."""
        self._only_written: tuple[int, ...] = ()
        """Of the inputs that calls change, those that they do not read."""
        self.followed: dict[int, str] = {}
        """Weights that each call begins with as they are and that its result holds, with their names there."""
        self._seed = fresh_seed()
        try:
            self._session = backend.open_session("reference", self._folder)
        except BaseException:
            self._folder.close()
            raise
        try:
            with backend.device_lock():
                self._session.greet()
                with self._translated():
                    source = str(self._folder.write("reference.py", self.problem.source))
                    self._require_room(source)
                    self._load(source)
                    if form.channels_last:
                        self._session.ask({"op": "channels last"}, self.settings.start_timeout_s)
                    self._share_inputs()
                self._learn_changes()
        except BaseException:
            self.close()
            raise

    def _require_room(self, source: str) -> None:
        require_room(self.problem, self.settings, self._session, source, self.backend.certain_bytes)

    def _load(self, source: str) -> None:
        limit = self.settings.start_timeout_s
        message = {
            "op": "load",
            "source": source,
            "seed": self._seed,
            "threads": self.settings.threads,
            "direction": self.problem.direction,
            "dtype": self.problem.dtype,
        }
        answer = self._session.ask(message, limit)
        self.is_spatial = bool(answer.get("spatial"))
        """Whether a layer convolves or normalises images or volumes, for which the memory format matters."""
        made = self._session.fetch(answer)
        arguments, weights, changing = made.tree["l"]
        self.changing = {item["v"] for item in changing["l"]}
        """Names of weights of which other values make sense."""
        self.arguments = alone(arguments, made)
        self.weight_names = [name for name, _ in weights["d"]]
        self.weights = alone(weights, made)
        if self.form.changed_weights and self.weights.tensors:
            self.weights = self._session.fetch(self._take(self._other_weights()))

    def _other_weights(self) -> Values:
        other = changed(self.weight_names, self.weights.tensors, self.changing, fresh_seed())
        return Values(self.weights.tree, tuple(other))

    def _take(self, weights: Values) -> dict[str, Any]:
        """Have the model take these weights; how it then holds them."""
        question = {"op": "weights", "names": self.weight_names}
        return self._session.ask(question, self.settings.start_timeout_s, weights)

    @contextmanager
    def reweighted(self) -> Iterator[Values]:
        """Within it the model has these other weights, and before and after it its own."""
        other = self._other_weights()
        with self._translated():
            self._take(other)
        try:
            yield other
        finally:
            with self._translated():
                self._take(self.weights)

    @contextmanager
    def seeded(self, seed: int, vary: bool = False) -> Iterator[None]:
        """Within it the model is one that was constructed under this seed; before and after it that of the start.

        `vary`: what torch's layers set to constants is drawn.
        """
        own = self.weights
        with self._translated():
            self.weights = self._session.fetch(self._session.construct_seeded(seed, vary))
        try:
            yield
        finally:
            self.weights = own
            with self._translated():
                self._session.construct_seeded(self._seed, vary=False)
                self._take(own)

    def replace_constants(self, session: Session) -> bool:
        """Give weights whose elements are all alike other values, here and in a candidate's model that has such.

        Whether there are any. Which is which need not be known: all of one value and size get the same values.
        """
        found: dict[tuple[float, int], RawTensor] = {}
        for name, raw in zip(self.weight_names, self.weights.tensors, strict=True):
            constant = constant_of(raw.tensor()) if name in self.changing else None
            if constant is not None:
                found[constant, raw.tensor().numel()] = raw
        if not found:
            return False
        names = [str(number) for number in range(len(found))]
        values = Values({"l": []}, tuple(changed(names, list(found.values()), names, fresh_seed())))
        question = {"op": "replace constants", "constants": [constant for constant, _ in found], "only": None}
        with self._translated():
            own = question | {"only": sorted(self.changing)}
            self._session.ask(own, self.settings.start_timeout_s, values)
        session.ask(question, self.settings.start_timeout_s, values)
        return True

    def adopt(self, other: "ReferenceSession") -> bool:
        """Take the weights of another reference of the problem; whether their results can then be compared.

        They cannot where the problem's own code gave other arguments to the constructor.
        """
        self.weights = other.weights
        if self.weights.tensors:
            with self._translated():
                self._take(self.weights)
        return self.arguments == other.arguments

    def construct_again(self) -> None:
        """From now on another model answers: under another seed, with the same weights and buffers."""
        with self._translated():
            self._session.ask({"op": "construct again", "seed": fresh_seed()}, self.settings.start_timeout_s)

    def _share_inputs(self) -> None:
        """Share the memory in which inputs will lie with the child."""
        self.sample = self.sample or self.draw()
        self._session.share_inputs(self.sample)

    def _learn_changes(self) -> None:
        """Know which inputs and weights a call changes in place, and what it only writes; found once a problem."""
        if self.problem.direction != "forward":
            return
        store, key = Store("changes"), status_key(self.problem.digest, self.backend.kind)
        found = store.get(key)
        if set(found or ()) != {"inputs", "only written", "weights"}:
            found = self._found_changes()
            store.put(key, found)
        self._session.changes, self._only_written = (tuple(found[name]) for name in ("inputs", "only written"))
        self._require_followable(found["weights"])
        self.followed = {number: f"{self.weight_names[number]} after the call" for number in found["weights"]}
        self._follow(self._session, self.followed)

    def _require_followable(self, weights: list[int]) -> None:
        """Raise `UnsupportedProblem` where calls cannot begin with these weights, or inputs, as they were."""

    def _follow(self, session: Session, weights: dict[int, str]) -> None:
        """Have each call begin with these weights as they are, and its result hold those that have a name there."""
        with self._translated() if session is self._session else nullcontext():
            session.ask({"op": "follow", "weights": list(weights.items())}, self.settings.start_timeout_s)
        session.restores = bool(weights)

    def _found_changes(self) -> dict[str, list[int]]:
        session, drawn = self._session, [self.draw() for _ in range(2)]
        with self._translated():
            one, two = (session.changes_made(values, self._patience_s) for values in drawn)
        inputs, parameters, buffers = (sorted({*one[it], *two[it]}) for it in ("inputs", "parameters", "buffers"))
        session.changes, weights, values = (
            tuple(inputs),
            sorted(parameters + buffers),
            drawn[0],
        )
        if not inputs and not weights:
            return {"inputs": [], "only written": [], "weights": []}
        values = values._replace(seed=fresh_seed())
        self._follow(session, dict.fromkeys(weights, ""))
        session.restores = False
        first, again = (self.call(values).output for _ in range(2))
        goes_on = bool(parameters) or mismatch(again, first, first, tolerance_of(self.problem), OVERALL) is not None
        session.restores = True
        written = [index for index in inputs if self._writes_only(values, index)]
        with self._translated():
            session.ask({"op": "restore"}, self._patience_s)
        self._follow(session, {})
        return {"inputs": inputs, "only written": written, "weights": weights if goes_on else []}

    def _writes_only(self, values: Values, index: int) -> bool:
        """Whether a call gives the same, bit by bit, whatever an input held."""
        want = self.call(values).output
        try:
            return self.call(poisoned(values, index)).output == want
        except BrokenProblem:  # as an index it is out of range
            return False

    @property
    def changes(self) -> tuple[int, ...]:
        return self._session.changes

    @cached_property
    def plan(self) -> Needs | None:
        """Memory of a call by its shapes; None where that is not known. Planning it takes seconds."""
        try:
            source = str(self._folder.path / "reference.py")
            return planned(self.problem, self._session, source, self.settings.start_timeout_s)
        except (ChildGone, ChildLate, Refused, OSError):
            return None

    @property
    def is_small(self) -> bool:
        """Whether weights and inputs are so small that many such children fit on any machine."""
        return self.sample is not None and self.weights.size + self.sample.size < CERTAIN_BYTES

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways in which float64 results were computed so far, where there is more than one."""
        return ()

    def release_result(self) -> None:
        """Release the last result that was shown."""

    def keep(self, output: Values) -> Values:
        """A result of this child that stays what it is, whatever is asked next."""
        return output

    def work(self) -> dict[str, Any]:
        """The necessary work of the problem, as `kernelwright_child.roofline` counts it."""
        values = self.draw()
        with self._translated():
            found: dict[str, Any] = self._session.trace(values, self._patience_s)["work"]
            return found

    def draw(self, cores: Sequence[int] = ()) -> Values:
        """Fresh inputs under a seed from the operating system that nobody else learns; NaN in what is only written.

        On a processor on these cores, where they are given; else on the one that calls begin on.
        """
        with self._translated():
            values = self._drawn(cores)
        for index in self._only_written:
            values = poisoned(values, index)
        return values

    def _drawn(self, cores: Sequence[int]) -> Values:
        question = {"op": "draw", "seed": fresh_seed(), "cores": list(cores)}
        return self._session.fetch(self._session.ask(question, self.settings.call_timeout_s))

    def share_memory(self, worker: Session) -> None:
        """Prepare a candidate's worker before its source runs."""

    def prepare_worker(self, worker: Session) -> None:
        """Prepare it once its model is made and has its weights."""
        assert self.sample is not None
        worker.changes = self.changes
        worker.share_inputs(self.sample)
        self._follow(worker, self.followed)

    def call(self, values: Values) -> Timed:
        """Call the reference as it is: the baseline's time, and a result in its dtype."""
        with self._translated():
            self._warm(values)
            return self._session.call(values, self._patience_s, operation(self.problem))

    def show(self, values: Values) -> Timed:
        """The same; the result may have to be read before the next question: `keep` what must last."""
        return self.call(values)

    def call_ms(self, values: Values) -> float:
        """The baseline's time alone."""
        with self._translated():
            self._warm(values)
            return self._session.call_ms(values, self._patience_s, operation(self.problem))

    def _warm(self, values: Values) -> None:
        """Have untimed calls take memory again that was given back."""

    def exact(self, values: Values, near: Values | None = None) -> Values:
        """The result in float64; `near`, where it is known, is the one as it is, for when memory is short."""
        return self.exact_part(values)

    def exact_part(self, values: Values) -> Values:
        """The result in float64, computed at once."""
        with self._translated():
            return self._session.call(values, self._patience_s, f"exact {operation(self.problem)}").output

    def state_after(self, worker: Session, values: Values) -> tuple[Values, Values]:
        """Buffers of a candidate's model and of this one after a call on `values`, from the same start."""
        question = {"op": "weights", "names": self.weight_names}
        limit = self.settings.start_timeout_s
        worker.ask(question, limit, self.weights)
        worker.call_ms(values, self.settings.call_timeout_s, operation(self.problem))
        theirs = worker.state(self.weights.size)  # what goes wrong in it is not the problem's fault
        with self._translated():
            self._session.ask(question, limit, self.weights)
            self._session.call_ms(values, self._patience_s, operation(self.problem))
            ours = self._session.state(self.weights.size)
        if not self.followed:
            return theirs, ours
        named = [[f"{name} after the call", {"t": number}] for number, name in enumerate(self.weight_names)]
        tree = {"d": [[RESULT, {"v": None}], *named]}
        return theirs._replace(tree=tree), ours._replace(tree=tree)

    def compile(self) -> None:
        """From now on calls are those of the compiled model; all compilation is done when this returns."""
        with self.backend.device_lock(), self._translated():
            values = self.draw()
            self._session.ask({"op": "compile", "mode": self.form.compiled}, self.settings.start_timeout_s)
            self._session.call_ms(values, COMPILING_S, operation(self.problem))
            counts = self._session.ask({"op": "compilations"}, self.settings.start_timeout_s)
        self.compilation = CompiledGraphs(made=int(counts["made"]), found=int(counts["found"]))

    def expect(self, result_bytes: int) -> None:
        with self._translated():
            self._session.expect(result_bytes)

    def protocol_ms(self) -> float:
        """Time in ms of a call that does nothing, on the judge's clock."""
        with self._translated():
            return self._session.nothing_ms()

    def nothing_ms(self) -> float:
        """The same on the clock of `call_ms`."""
        return self.protocol_ms()

    @property
    def _patience_s(self) -> float:
        return PATIENCE * self.settings.call_timeout_s

    @cached_property
    def status(self) -> ProblemStatus:
        """Whether trivial answers fail on this problem."""
        return ProblemStatus(status="weak", why=(RANDOM,)) if self.is_random else self._status()

    def _status(self) -> ProblemStatus:
        with self.subject() as subject:
            tolerance = tolerance_of(self.problem, self.settings.accuracy)
            return quick_status(subject, tolerance, self.problem.values.without)

    @contextmanager
    def subject(self) -> Iterator[StatusSubject]:
        """The subject of `lint`: this, or a part of a large one, which shows as much."""
        yield self

    @cached_property
    def is_random(self) -> bool:
        """Whether it answers the same values differently (dropout in training mode), so that no answer is the right."""
        values = self.draw()
        return self._answers_otherwise(values, self.call(values).output)

    def is_random_on(self, values: Values, once: Values) -> bool:
        """The same, where what it answered to some values once is at hand, and is kept."""
        if "is_random" not in self.__dict__:
            self.__dict__["is_random"] = self._answers_otherwise(values, once)
        return self.is_random

    def _answers_otherwise(self, values: Values, once: Values) -> bool:
        again, alike = self.show(values).output, values._replace(seed=fresh_seed())
        tolerance = tolerance_of(self.problem)
        found = draws(again, once, tolerance, lambda: self.keep(self.show(alike).output))
        if found:
            first = self.keep(self.show(alike).output)
            if mismatch(self.show(alike).output, first, first, tolerance, OVERALL) is not None:
                raise UnsupportedProblem(NEVER_ALIKE.format(name=self.problem.name))
        self.release_result()
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of this child into errors of the problem, in one sentence that names the baseline."""
        name = self.problem.name
        how = "" if self.form.baseline == PLAIN.baseline else f" under {self.form.baseline}"
        remedy = f"judge without {self.form.baseline}" if how else "correct the problem file"
        try:
            yield
        except ChildLate:
            smaller = remedy if how else "make the problem smaller"
            raise BrokenProblem(f"the reference of {name} did not answer in time{how}; {smaller}") from None
        except Refused as error:
            if error.memory:
                raise UnsupportedHere(f"{self._lacking(how)} ({error.reason[:400]})") from None
            if error.unsupported:
                raise UnsupportedProblem(f"the problem {name} can not be judged: {error}") from None
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None
        except (ChildGone, MemoryReadError, Misbehaved) as error:
            if self._session.ran_out_of_memory:
                raise UnsupportedHere(self._lacking(how)) from None
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None

    def _lacking(self, how: str) -> str:
        """The sentence for a reference that has not enough memory."""
        plan = "" if self.plan is None else f" (by its shapes about {gib(self.plan.inputs + self.plan.peak)} a call)"
        return f"the reference of {self.problem.name} takes more memory{plan} than {self._room(how)}"

    def _room(self, how: str) -> str:
        there = gib(self.settings.memory_bytes)
        return f"the {there} that a child may take here{how}; give more with --memory, or use a machine that has more"

    @property
    def returns_inputs(self) -> bool:
        """Whether its results lie in the memory of inputs; known from its first call on."""
        return self._session.returns_inputs

    @property
    def layers(self) -> tuple[str, ...]:
        return self._session.layers

    def close(self) -> None:
        try:
            self._session.close()
        finally:
            self._folder.close()


def fresh_seed() -> int:
    return secrets.randbits(63)
