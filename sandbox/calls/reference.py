"""The problem's own code in its own child: arguments, weights, inputs, expected values and the baseline's time."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.backend import device_held, open_session
from kernelwright.sandbox.calls.device import Timed
from kernelwright.sandbox.calls.exact_on_device import PartOfReference
from kernelwright.sandbox.calls.memory_planning import CERTAIN_BYTES, LARGE_BYTES, Needs, planned, require_room
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session
from kernelwright.sandbox.correctness.compare import mismatch, tolerance_of
from kernelwright.sandbox.correctness.families import changed
from kernelwright.sandbox.correctness.lint import OVERALL, draws, quick_status
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.storage import Store, status_key
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, alone, poisoned
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.memory import gib
from kernelwright.sandbox.verdict.settings import CompileMode, Settings
from kernelwright.sandbox.verdict.verdicts import ProblemStatus
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.models import constant_of
from kernelwright_child.wire import RESULT

if TYPE_CHECKING:
    from kernelwright.sandbox.calls.buffers import Layout
    from kernelwright.sandbox.calls.device import SharedInputs
    from kernelwright.sandbox.calls.exact_on_device import ExactOnDevice
    from kernelwright.sandbox.calls.gpu_session import GpuSession

PATIENCE = 10
"""A reference may take this many times a candidate's call limit: float64 is slow."""
COMPILING_S = 1200
"""For all compilation by torch.compile, which may try out dozens of kernels."""
Precision = Literal["strict", "shipped", "tf32"]
"""Torch's precision switches of a baseline: as the problem's policy says, torch's own defaults, or with TF32."""
SHIPPED: Precision = "shipped"
UNDER: dict[Precision, str] = {"strict": "", "shipped": " as shipped", "tf32": " tf32"}
MOST_WARMING = 4
"""Calls after memory was given back."""
STATUS_BYTES = 2**28
"""Of inputs and result that lazy answers are held against, where a part of them does."""
RANDOM = (
    "two calls on the same values differ by more than rounding (dropout, or another draw in forward), so both sides "
    "are seeded alike before each call and only what draws in the same way can be right"
)
UNFOLLOWED = (
    "{name} can not be judged on a GPU: calls of its reference go on from weights or integers that they have changed, "
    "and calls are issued ahead there; judge it with --device cpu"
)
NEVER_ALIKE = (
    "{name} can not be judged: its reference answers otherwise on the same values under the same seed; let it draw by "
    "torch's default generator, and keep what calls go on from in parameters or buffers that are part of the state"
)
UNTRIED = "whether lazy answers fail was not tried: the device has no room for them beside inputs and results"


def operation(problem: Problem) -> str:
    """What workers are asked to do for this problem: `call`, or `backward` where gradients are wanted too."""
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
    """How many graphs torch.compile has compiled, and how many it found compiled before."""

    made: int
    found: int

    @property
    def is_new(self) -> bool:
        """Whether there is anything that was not there before."""
        return self.made > 0 or self.found == 0


class ReferenceSession:
    """The problem's own code in its own child: constructor arguments, weights, inputs, expected values, baseline."""

    certain_bytes = CERTAIN_BYTES
    """Of inputs, below which what a call takes is not looked at before one."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        form: Form = PLAIN,
        folder: WorkFolder | None = None,
        inputs: "SharedInputs | Values | None" = None,
    ) -> None:
        """Of a compiled form, `compile` is due before the first call. The folder is removed with the child.

        `inputs`: of another reference of the problem, on a device the memory that it sees them in; on a processor some
        that it has drawn, which tell how they are laid out.
        """
        self.problem, self.settings, self.form = problem, settings, form
        self.compilation = CompiledGraphs(0, 0)
        self._folder = folder or WorkFolder()
        self._on_device: GpuSession | None = None
        self.sample = inputs if isinstance(inputs, Values) else None
        """On a processor: inputs as they are drawn."""
        self._shared = None if isinstance(inputs, Values) else inputs
        self._own_inputs = inputs is None
        self._only_written: tuple[int, ...] = ()
        """Of the inputs that calls change, those that they do not read."""
        self.followed: dict[int, str] = {}
        """Weights that each call begins with as they are and that its result holds, with their names there."""
        self._forget: Callable[[], None] = lambda: None
        self._shows_exact, self._seed = False, _seed()
        self.switches_under: dict[Precision, dict[str, Any]] = {}
        """On a device: torch's switches under the policies of `under`, as the child reported them."""
        try:
            self._session = open_session("reference", self._folder, settings)
        except BaseException:
            self._folder.close()
            raise
        try:
            with device_held(settings):
                self._session.greet()
                with self._translated():
                    source = str(self._folder.write("reference.py", self.problem.source))
                    require_room(problem, settings, self._session, source, self.certain_bytes)
                    self._load(source)
                    if form.channels_last:
                        self._session.ask({"op": "channels last"}, settings.start_timeout_s)
                    self._lend()
                self._learn_changes()
        except BaseException:
            self.close()
            raise

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
        other = changed(self.weight_names, self.weights.tensors, self.changing, _seed())
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
        values = Values({"l": []}, tuple(changed(names, list(found.values()), names, _seed())))
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
            self._session.ask({"op": "construct again", "seed": _seed()}, self.settings.start_timeout_s)

    def _lend(self) -> None:
        if not self.settings.gpu:
            self.sample = self.sample or self.draw()
            self._session.lend(self.sample)
            return
        from kernelwright.sandbox.calls.device import SharedInputs, device_of
        from kernelwright.sandbox.calls.gpu_session import GpuSession
        from kernelwright.sandbox.calls.memory_relief import register

        assert isinstance(self._session, GpuSession)
        self._on_device = session = self._session
        session.to_device(self.problem.precision if self.form.precision == "strict" else self.form.precision)
        session.trust_results()
        self.layout: Layout = session.layout(_seed(), self._patience_s)
        self._shared = self._shared or SharedInputs()
        session.lend_memory(self._shared.for_layout(self.layout, device_of(self.settings)))
        if not session.can_be_mapped():
            session.lend_outputs(self.needs.exact)
        self._forget = register(self.rest, self.settings.ordinal)

    def _learn_changes(self) -> None:
        """Know which inputs and weights a call changes in place, and what it only writes; found once a problem."""
        if self.problem.direction != "forward":
            return
        store, key = Store("changes"), status_key(self.problem.digest, "cuda" if self.settings.gpu else "cpu")
        found = store.get(key)
        if set(found or ()) != {"inputs", "only written", "weights"}:
            found = self._found_changes()
            store.put(key, found)
        self._session.changes, self._only_written = (tuple(found[name]) for name in ("inputs", "only written"))
        if self.settings.gpu and (found["weights"] or any("int" in self.layout[one][0] for one in found["inputs"])):
            raise UnsupportedProblem(UNFOLLOWED.format(name=self.problem.name))
        self.followed = {number: f"{self.weight_names[number]} after the call" for number in found["weights"]}
        self._follow(self._session, self.followed)

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
        session.changes, weights, values = tuple(inputs), sorted(parameters + buffers), drawn[0]._replace(seed=_seed())
        if not inputs and not weights:
            return {"inputs": [], "only written": [], "weights": []}
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
        """What a call takes of memory, by its shapes; None where that can not be told. The first time takes seconds."""
        try:
            source = str(self._folder.path / "reference.py")
            return planned(self.problem, self._session, source, self.settings.start_timeout_s)
        except (ChildGone, ChildLate, Refused, OSError):
            return None

    @property
    def is_small(self) -> bool:
        """Whether weights and inputs are so small that many such children fit on any machine."""
        return self.sample is not None and self.weights.size + self.sample.size < CERTAIN_BYTES

    @cached_property
    def needs(self) -> Needs:
        """On a device: what a call takes of its memory, measured in one."""
        assert self._on_device is not None
        with self._translated():
            return self._on_device.needs(self.problem.direction != "forward", self.draw())

    @cached_property
    def _exact(self) -> "ExactOnDevice":
        from kernelwright.sandbox.calls.device import device_of
        from kernelwright.sandbox.calls.exact_on_device import ExactOnDevice

        assert self._on_device is not None
        return ExactOnDevice(self._on_device, device_of(self.settings), self.needs, tolerance_of(self.problem))

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """On a device: how float64 results were computed so far: `whole`, in `parts`, on the `processor`."""
        return tuple(sorted(self._exact.ways)) if "_exact" in self.__dict__ else ()

    def rest(self) -> None:
        """On a device: give back all memory that is kept for the next call only; that one is then preceded by another.

        Nothing while a result is still to be read where it lies.
        """
        if self._on_device is not None:
            with self._translated():
                self._on_device.rest()

    def let_go(self) -> None:
        """The last result that was shown is no longer needed."""
        if self._on_device is not None:
            self._on_device.let_go()
            if self._shows_exact and self.needs.is_large:
                self.rest()
            self._shows_exact = False

    def keep(self, output: Values) -> Values:
        """A result of this child that stays what it is, whatever is asked next."""
        if self._on_device is None:
            return output
        from kernelwright.sandbox.calls.memory_relief import with_relief

        owned = with_relief(output.owned)
        self._on_device.let_go()
        return owned

    @property
    def switches(self) -> dict[str, Any]:
        """On a device: torch's precision switches as the child reported them."""
        return self._on_device.switches if self._on_device else {}

    def work(self) -> dict[str, Any]:
        """What `kernelwright_child.roofline` finds that the problem needs."""
        values = self.draw()
        with self._translated():
            found: dict[str, Any] = self._session.trace(values, self._patience_s)["work"]
            return found

    def draw(self, cores: Sequence[int] = ()) -> Values:
        """Fresh inputs under a seed from the operating system that nobody else learns; NaN in what is only written.

        On a processor on these cores, where they are given; else on the one that calls begin on.
        """
        with self._translated():
            if self._on_device is not None:
                values = self._on_device.draw(_seed(), self._patience_s)
                if values.size > LARGE_BYTES:
                    self._on_device.rest()
            else:
                question = {"op": "draw", "seed": _seed(), "cores": list(cores)}
                values = self._session.fetch(self._session.ask(question, self.settings.call_timeout_s))
        for index in self._only_written:
            values = poisoned(values, index)
        return values

    def admit(self, worker: Session) -> None:
        """Prepare a candidate's worker before its source runs: on a device, lend it memory like this child's."""
        if self._on_device is not None:
            assert isinstance(worker, type(self._on_device))
            worker.admit(self.layout, self.needs.result)

    def equip(self, worker: Session) -> None:
        """Prepare it once its model stands and has its weights: lend it memory, or move the model to the device."""
        worker.changes = self.changes
        if self._on_device is None:
            assert self.sample is not None
            worker.lend(self.sample)
            self._follow(worker, self.followed)
        else:
            assert isinstance(worker, type(self._on_device))
            worker.to_device(self.problem.precision)

    def call(self, values: Values) -> Timed:
        """The reference as it stands: the baseline's time, and what its dtype can reach."""
        with self._translated():
            self._warm(values)
            return self._session.call(values, self._patience_s, operation(self.problem))

    def show(self, values: Values) -> Timed:
        """The same; on a device the result is read where it lies, until the next question: `keep` what must last."""
        if self._on_device is None:
            return self.call(values)
        with self._translated():
            self._warm(values)
            return self._on_device.call(values, self._patience_s, operation(self.problem), in_place=True)

    def call_ms(self, values: Values) -> float:
        """The baseline's time alone; on a device by its events, which a trusted child tells as they are."""
        with self._translated():
            self._warm(values)
            if self._on_device is not None:
                return self._on_device.call_ms(values, self._patience_s, operation(self.problem))
            return self._session.call_ms(values, self._patience_s, operation(self.problem))

    def _warm(self, values: Values) -> None:
        """Whoever has given memory back gets it again in calls that nobody times.

        Until a result lies where an earlier one did: it may take turns with what lies between.
        """
        if self._on_device is None or not self._on_device.is_cold:
            return
        for _ in range(MOST_WARMING):
            known = self._on_device.places_known
            self._on_device.call_ms(values, self._patience_s, operation(self.problem))
            if self._on_device.places_known == known:
                return

    def under(self, precision: Precision, values: Values, in_place: bool = True) -> Timed:
        """On a device: the same under another policy, which is then put back.

        `in_place`: the result is read where it lies, until the next question.
        """
        with self.on_device(precision) as session:
            self._warm(values)
            return session.call(values, self._patience_s, operation(self.problem), in_place=in_place)

    @contextmanager
    def on_device(self, precision: Precision | None = None) -> Iterator["GpuSession"]:
        """Within it the child's session on the device, under another precision policy where one is named."""
        session = self._on_device
        assert session is not None
        with self._translated():
            if precision:
                self.switches_under[precision] = session.policy(precision)
            try:
                yield session
            finally:
                session.let_go()
                if precision:
                    session.policy(self.problem.precision)

    def exact(self, values: Values, near: Values | None = None) -> Values:
        """The reference in float64; `near`, where it is known, is the result as it stands, for when memory is short.

        A large result on a device is read where it lies, until the next question: `owned` is what must last.
        """
        with self._translated():
            if self._on_device is not None:
                self._shows_exact = True
                return self._exact.result(values, near, operation(self.problem), self._patience_s)
            return self._session.call(values, self._patience_s, f"exact {operation(self.problem)}").output

    def exact_part(self, values: Values) -> Values:
        """The same of fewer indices, for which memory is lent: nothing is cut any further."""
        with self._translated():
            return self._session.call(values, self._patience_s, f"exact {operation(self.problem)}").output

    def state_after(self, worker: Session, values: Values) -> tuple[Values, Values]:
        """What a call on `values` makes of the buffers of a candidate's model and of this one, both as they began."""
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
        with device_held(self.settings), self._translated():
            values = self.draw()
            self._session.ask({"op": "compile", "mode": self.form.compiled}, self.settings.start_timeout_s)
            self._session.call_ms(values, COMPILING_S, operation(self.problem))
            told = self._session.ask({"op": "compilations"}, self.settings.start_timeout_s)
        self.compilation = CompiledGraphs(made=int(told["made"]), found=int(told["found"]))

    def expect(self, result_bytes: int) -> None:
        with self._translated():
            self._session.expect(result_bytes)

    def protocol_ms(self) -> float:
        """What a call that does nothing takes on the judge's clock."""
        with self._translated():
            return self._session.nothing_ms()

    def nothing_ms(self) -> float:
        if self._on_device is None:
            return self.protocol_ms()
        with self._translated():
            return self._on_device.nothing_on_device_ms()

    @property
    def _patience_s(self) -> float:
        return PATIENCE * self.settings.call_timeout_s

    @cached_property
    def status(self) -> ProblemStatus:
        """Whether trivial answers fail on this problem."""
        if self.is_random:
            return ProblemStatus(status="weak", why=(RANDOM,))
        if self._on_device is None:
            return self._status()
        import torch

        from kernelwright.sandbox.calls.memory_relief import with_relief

        try:
            return with_relief(self._status)
        except torch.OutOfMemoryError:
            return ProblemStatus(status="weak", why=(UNTRIED,))

    def _status(self) -> ProblemStatus:
        with self.subject() as subject:
            tolerance = tolerance_of(self.problem, self.settings.accuracy)
            return quick_status(subject, tolerance, self.problem.values.without)

    @contextmanager
    def subject(self) -> Iterator["ReferenceSession | PartOfReference"]:
        """What `lint` looks at: this, or of one that is large on its device a part, which tells as much."""
        if self._on_device is None or not self.needs.is_large:
            yield self
            return
        from kernelwright.sandbox.calls.exact_on_device import layout_of_part

        values = self.draw()
        cut = self._exact.cut(values, self.call(values).output, operation(self.problem), self._patience_s)
        if cut is None:
            del values
            yield self
            return
        call_bytes = self.needs.inputs + self.needs.result
        step = max(2, min(self._exact.step(cut), cut.rows * STATUS_BYTES // max(1, call_bytes)))
        layout = layout_of_part(values, cut, step)
        del values
        with self._exact.lent(layout) as turn:
            yield PartOfReference(self, turn, cut, step)

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
        again, alike = self.show(values).output, values._replace(seed=_seed())
        tolerance = tolerance_of(self.problem)
        found = draws(again, once, tolerance, lambda: self.keep(self.show(alike).output))
        if found:
            first = self.keep(self.show(alike).output)
            if mismatch(self.show(alike).output, first, first, tolerance, OVERALL) is not None:
                raise UnsupportedProblem(NEVER_ALIKE.format(name=self.problem.name))
        self.let_go()
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What goes wrong in this child is the problem's fault, said in one sentence that names the baseline."""
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
        """The sentence for a reference that has not enough memory, in its own child or on the device."""
        name = self.problem.name
        plan = "" if self.plan is None else f" (by its shapes about {gib(self.plan.inputs + self.plan.peak)} a call)"
        if self.settings.gpu:
            from kernelwright.sandbox.calls.device import device_of

            there = gib(device_of(self.settings).total_bytes())
            return (
                f"the reference of {name} takes more memory{plan} than the device's {there} leave it{how}; use a "
                "device with more, or make the problem smaller"
            )
        there = gib(self.settings.memory_bytes)
        return (
            f"the reference of {name} takes more memory{plan} than the {there} that a child may take here{how}; give "
            "more with --memory, or use a machine that has more"
        )

    @property
    def returns_inputs(self) -> bool:
        """Whether its results lie in the memory of inputs; known from its first call on."""
        return self._session.returns_inputs

    @property
    def layers(self) -> tuple[str, ...]:
        return self._session.layers

    def close(self) -> None:
        self._forget()
        self._forget = lambda: None
        try:
            self._session.close()
        finally:
            if self._own_inputs and self._shared is not None:
                self._shared.close()
            self._folder.close()


def _seed() -> int:
    return secrets.randbits(63)
