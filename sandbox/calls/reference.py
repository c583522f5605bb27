"""The reference in its own child: arguments, weights, inputs, expected values and the baseline's time."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import CERTAIN_BYTES, Backend, Needs, planned
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session, Timed
from kernelwright.sandbox.correctness.compare import mismatch, tolerance_of
from kernelwright.sandbox.correctness.lint import OVERALL, RunningReference, draws, quick_status
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.machine import gib
from kernelwright.sandbox.storage import Store, status_key
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, alone, poisoned
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import CompileMode
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.models import constant_of, near
from kernelwright_child.wire import RESULT

PATIENCE = 10
"""Call limit of a reference as a multiple of a candidate's: float64 is slow."""
COMPILING_S = 1200
"""Limit of torch.compile, which may try dozens of kernels."""
Precision = Literal["strict", "shipped", "tf32"]
"""Torch's precision switches of a baseline: the problem's policy, torch's defaults, or TF32."""
SHIPPED: Precision = "shipped"
UNDER: dict[Precision, str] = {"strict": "", "shipped": " as shipped", "tf32": " tf32"}
RANDOM = (
    "two calls on the same values differ by more than rounding (dropout, or another draw in forward), so both sides "
    "are seeded alike before each call and only what draws in the same way can be right"
)
NEVER_ALIKE = (
    "{name} cannot be judged: its reference answers otherwise on the same values under the same seed; let it draw by "
    "torch's default generator, and keep what calls go on from in parameters or buffers that are part of the state"
)


def operation(problem: Problem) -> str:
    """Return the question to workers for this problem: `call`, or `backward` for gradients."""
    return "call" if problem.direction == "forward" else "backward"


class Form(NamedTuple):
    """A form of the reference: the computation of its baseline, and the origin of its weights."""

    compiled: CompileMode | None = None
    changed_weights: bool = False
    precision: Precision = "strict"
    channels_last: bool = False
    """Whether weights are in channels_last, and each call converts its inputs."""

    @property
    def baseline(self) -> str:
        name = "eager" if self.compiled is None else f"torch.compile {self.compiled}"
        return f"{name}{' channels_last' if self.channels_last else ''}{UNDER[self.precision]}"


PLAIN = Form()


class CompiledGraphs(NamedTuple):
    """Numbers of graphs that torch.compile has compiled, and that it found in its cache."""

    made: int
    found: int

    @property
    def is_new(self) -> bool:
        return self.made > 0 or self.found == 0


class StatusSubject(RunningReference, Protocol):
    """A reference of which the problem's status can be found: all of it, or on a part of its inputs."""

    def reweighted(self) -> AbstractContextManager[Values]:
        """Give the model other weights within the block."""


class ReferenceSession:
    """A child that runs the reference: constructor arguments, weights, inputs, expected values, baseline."""

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        form: Form = PLAIN,
        folder: WorkFolder | None = None,
        sample: Values | None = None,
    ) -> None:
        """Start the child, which takes `folder` over. Call `compile` first for a compiled form.

        `sample`: inputs of another reference of the problem, for their layout.
        """
        self.problem, self.backend, self.settings, self.form = problem, backend, backend.settings, form
        self._patience_s = PATIENCE * self.settings.call_timeout_s
        self.compilation = CompiledGraphs(0, 0)
        self._folder = folder or WorkFolder()
        self.sample = sample
        """Inputs as drawn, where they lie in host memory."""
        self._only_written: tuple[int, ...] = ()
        """Changed inputs that calls do not read."""
        self.followed: dict[int, str] = {}
        """Weights that are restored before each call and are part of its result, with their names there."""
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
                    backend.require_room(problem, self._session, source)
                    self._load(source)
                    if form.channels_last:
                        self._session.ask({"op": "channels last"}, self.settings.start_timeout_s)
                    self._share_inputs()
                self._learn_changes()
        except BaseException:
            self.close()
            raise

    def _load(self, source: str) -> None:
        message = {
            "op": "load",
            "source": source,
            "seed": self._seed,
            "near": fresh_seed() if self.form.changed_weights else None,
            "threads": self.settings.threads,
            "cores": self.settings.cores,
            "direction": self.problem.direction,
            "dtype": self.problem.dtype,
        }
        answer = self._session.ask(message, self.settings.start_timeout_s)
        self.is_spatial = bool(answer.get("spatial"))
        """Whether a layer convolves or normalises images or volumes, where the memory format matters."""
        made = self._session.fetch(answer)
        arguments, weights, changing = made.tree["l"]
        self.changing = {item["v"] for item in changing["l"]}
        """Names of weights that may have other values."""
        self.arguments = alone(arguments, made)
        self.weight_names = [name for name, _ in weights["d"]]
        self.weights = alone(weights, made)

    @contextmanager
    def reweighted(self) -> Iterator[Values]:
        """Give the model other weights within the block, which are yielded."""
        question = {"op": "change weights", "near": fresh_seed(), "cores": self.settings.cores}
        with self._translated():
            other = self._session.fetch(self._session.ask(question, self.settings.start_timeout_s))
        try:
            yield other
        finally:
            with self._translated():
                self._session.copy_weights(self.weight_names, self.weights)

    @contextmanager
    def seeded(self, seed: int, vary: bool = False) -> Iterator[None]:
        """Within the block use a model made under this seed. `vary`: draw the constants of torch's layers."""
        own = self.weights
        with self._translated():
            self.weights = self._session.fetch(self._session.construct_seeded(seed, vary))
        try:
            yield
        finally:
            self.weights = own
            with self._translated():
                self._session.construct_seeded(self._seed, vary=False)
                self._session.copy_weights(self.weight_names, own)

    def replace_constants(self, session: Session) -> bool:
        """Replace constant weights by other values, here and in a candidate's model; return whether there are any.

        All constants of one value and size get the same values, so that weights need not be matched.
        """
        found: dict[tuple[float, int], RawTensor] = {}
        for name, raw in zip(self.weight_names, self.weights.tensors, strict=True):
            constant = constant_of(raw.tensor()) if name in self.changing else None
            if constant is not None:
                found[constant, raw.tensor().numel()] = raw
        if not found:
            return False
        values = Values({"l": []}, tuple(RawTensor.of(near(raw.tensor(), fresh_seed())) for raw in found.values()))
        question = {"op": "replace constants", "constants": [constant for constant, _ in found], "only": None}
        with self._translated():
            own = question | {"only": sorted(self.changing)}
            self._session.ask(own, self.settings.start_timeout_s, values)
        session.ask(question, self.settings.start_timeout_s, values)
        return True

    def adopt(self, other: "ReferenceSession") -> bool:
        """Take the weights of another reference; return whether their results can then be compared.

        They cannot where the two constructors had different arguments.
        """
        self.weights = other.weights
        if self.weights.tensors:
            with self._translated():
                self._session.copy_weights(self.weight_names, self.weights)
        return self.arguments == other.arguments

    def construct_again(self) -> None:
        """Construct another model under another seed with the same weights and buffers, used from now on."""
        with self._translated():
            self._session.ask({"op": "construct again", "seed": fresh_seed()}, self.settings.start_timeout_s)

    def _share_inputs(self) -> None:
        self.sample = self.sample or self.draw()
        self._session.share_inputs(self.sample)

    def _learn_changes(self) -> None:
        """Find the inputs and weights that a call changes, and inputs that it only writes; stored per problem."""
        if self.problem.direction != "forward":
            return
        store, key = Store("call-changes"), status_key(self.problem.digest, self.backend.kind)
        found = store.get(key)
        if set(found or ()) != {"inputs", "only written", "weights"}:
            found = self._found_changes()
            store.put(key, found)
        self._session.changes, self._only_written = (tuple(found[name]) for name in ("inputs", "only written"))
        self._require_followable(found["weights"])
        self.followed = {number: f"{self.weight_names[number]} after the call" for number in found["weights"]}
        self._follow(self._session, self.followed)

    @property
    def _follows_all(self) -> bool:
        """Whether all that a call changes is restored before each call and is part of its result."""
        return self.problem.state == "followed"

    def _require_followable(self, weights: list[int]) -> None:
        """Raise `UnsupportedProblem` where these weights, or inputs, cannot be restored before a call."""

    def _follow(self, session: Session, weights: dict[int, str]) -> None:
        """Restore these weights before each call, and include those with a name in its result."""
        with self._translated() if session is self._session else nullcontext():
            session.ask({"op": "follow", "weights": list(weights.items())}, self.settings.start_timeout_s)
        session.restores = bool(weights)

    def _found_changes(self) -> dict[str, list[int]]:
        session, drawn = self._session, [self.draw() for _ in range(2)]
        with self._translated():
            one, two = (session.changes_made(values, self._patience_s) for values in drawn)
        inputs, parameters, buffers = (sorted({*one[it], *two[it]}) for it in ("inputs", "parameters", "buffers"))
        session.changes, weights, values = tuple(inputs), sorted(parameters + buffers), drawn[0]
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
        return {"inputs": inputs, "only written": written, "weights": weights if goes_on or self._follows_all else []}

    def _writes_only(self, values: Values, index: int) -> bool:
        """Check that a call's result does not depend on an input, bit by bit."""
        want = self.call(values).output
        try:
            return self.call(poisoned(values, index)).output == want
        except BrokenProblem:  # the poisoned value is an index out of range
            return False

    @property
    def changes(self) -> tuple[int, ...]:
        return self._session.changes

    @cached_property
    def plan(self) -> Needs | None:
        """Memory of a call by its shapes, which takes seconds to plan; None where it is unknown."""
        try:
            source = str(self._folder.path / "reference.py")
            return planned(self.problem, self._session, source, self.settings.start_timeout_s)
        except (ChildGone, ChildLate, Refused, OSError):
            return None

    @property
    def is_small(self) -> bool:
        return self.sample is not None and self.weights.size + self.sample.size < CERTAIN_BYTES

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways in which float64 results were computed so far; none on a processor."""
        return ()

    def release_result(self) -> None:
        """Release the last result of `show`."""

    def keep(self, output: Values) -> Values:
        """Return a result that stays valid after the next question."""
        return output

    def work(self) -> dict[str, Any]:
        values = self.draw()
        with self._translated():
            found: dict[str, Any] = self._session.trace(values, self._patience_s)["work"]
            return found

    def draw(self, cores: Sequence[int] = ()) -> Values:
        """Draw inputs under a secret seed of the operating system, with NaN in inputs that are only written.

        `cores`: processor cores to draw on; by default the first of the child.
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
        """Share memory with a candidate's worker before its source runs."""

    def prepare_worker(self, worker: Session) -> None:
        assert self.sample is not None
        worker.changes = self.changes
        worker.share_inputs(self.sample)
        self._follow(worker, self.followed)

    def call(self, values: Values) -> Timed:
        """Call the reference for the baseline's time and a result in its dtype."""
        with self._translated():
            self._warm(values)
            return self._session.call(values, self._patience_s, operation(self.problem))

    def show(self, values: Values) -> Timed:
        """Call the reference; the result is valid until the next question, unless `keep` takes it."""
        return self.call(values)

    def call_ms(self, values: Values) -> float:
        with self._translated():
            self._warm(values)
            return self._session.call_ms(values, self._patience_s, operation(self.problem))

    def _warm(self, values: Values) -> None:
        """Allocate freed memory again in untimed calls."""

    def exact(self, values: Values, near: Values | None = None) -> Values:
        """Return the result in float64; `near`, the result in the reference's dtype, helps where memory is short."""
        return self.exact_part(values)

    def exact_part(self, values: Values) -> Values:
        """Return the result in float64, computed in one piece."""
        with self._translated():
            return self._session.call(values, self._patience_s, f"exact {operation(self.problem)}").output

    def state_after(self, worker: Session, values: Values) -> tuple[Values, Values]:
        """Return the buffers of a candidate's model and of this one after a call on `values` from the same state."""
        worker.copy_weights(self.weight_names, self.weights)
        worker.call_ms(values, self.settings.call_timeout_s, operation(self.problem))
        theirs = worker.state(self.weights.size)  # its errors are the candidate's
        with self._translated():
            self._session.copy_weights(self.weight_names, self.weights)
            self._session.call_ms(values, self._patience_s, operation(self.problem))
            ours = self._session.state(self.weights.size)
        if not self.followed:
            return theirs, ours
        named = [[f"{name} after the call", {"t": number}] for number, name in enumerate(self.weight_names)]
        tree = {"d": [[RESULT, {"v": None}], *named]}
        return theirs._replace(tree=tree), ours._replace(tree=tree)

    def compile(self) -> None:
        """Compile the model, which calls use from now on; all compilation is done on return."""
        with self.backend.device_lock(), self._translated():
            values = self.draw()
            self._session.ask({"op": "compile", "mode": self.form.compiled}, self.settings.start_timeout_s)
            self._session.call_ms(values, COMPILING_S, operation(self.problem))
            counts = self._session.ask({"op": "compilations"}, self.settings.start_timeout_s)
        self.compilation = CompiledGraphs(made=int(counts["made"]), found=int(counts["found"]))

    def expect(self, result_bytes: int) -> None:
        with self._translated():
            self._session.expect(result_bytes)

    def nothing_ms(self) -> float:
        """Return the time of an empty call in ms, on the clock of `call_ms`."""
        with self._translated():
            return self._session.nothing_ms()

    @cached_property
    def status(self) -> ProblemStatus:
        """Status of the problem: whether trivial answers fail."""
        return ProblemStatus(status="weak", why=(RANDOM,)) if self.is_random else self._status()

    def _status(self) -> ProblemStatus:
        with self.subject() as subject:
            tolerance = tolerance_of(self.problem, self.settings.accuracy)
            return quick_status(subject, tolerance, self.problem.values.without)

    @contextmanager
    def subject(self) -> Iterator[StatusSubject]:
        """Yield the subject of `lint`: this reference, or a part of a large one."""
        yield self

    @cached_property
    def is_random(self) -> bool:
        """True if results on the same values differ (dropout in training mode), so that no answer is correct."""
        values = self.draw()
        return self._answers_otherwise(values, self.call(values).output)

    def is_random_on(self, values: Values, once: Values) -> bool:
        """Return `is_random`, found by a known result on some values, which is kept."""
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
        """Translate errors of this child into errors of the problem, in one sentence with the baseline."""
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
                raise UnsupportedProblem(f"the problem {name} cannot be judged: {error}") from None
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None
        except (ChildGone, MemoryReadError, Misbehaved) as error:
            if self._session.ran_out_of_memory():
                raise UnsupportedHere(self._lacking(how)) from None
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None

    def _lacking(self, how: str) -> str:
        plan = "" if self.plan is None else f" (by its shapes about {gib(self.plan.inputs + self.plan.peak)} a call)"
        return f"the reference of {self.problem.name} takes more memory{plan} than {self._room(how)}"

    def _room(self, how: str) -> str:
        there = gib(self.settings.memory_bytes)
        return f"the {there} that a child may take here{how}; give more with --memory, or use a machine that has more"

    @property
    def returns_inputs(self) -> bool:
        """True if results lie in the memory of inputs; known after the first call."""
        return self._session.returns_inputs

    def may_spoil(self, output: RawTensor) -> bool:
        """Return whether a tensor of a result may be overwritten once it is read: it is none of the weights."""
        return not any(output.shape == one.shape and output.data == one.data for one in self.weights.tensors)

    def close(self) -> None:
        try:
            self._session.close()
        finally:
            self._folder.close()


def fresh_seed() -> int:
    return secrets.randbits(63)
