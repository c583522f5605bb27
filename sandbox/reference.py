"""The problem's own code in its own child: arguments, weights, inputs, expected values and the baseline's time."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from problems import Problem
from sandbox.children import ChildGone, ChildLate
from sandbox.compare import mismatch, tolerance_of
from sandbox.errors import BrokenProblem, UnsupportedProblem
from sandbox.lint import quick_status
from sandbox.opening import device_held, open_session
from sandbox.peek import PeekError
from sandbox.sessions import Misbehaved, Refused, Session, Timed
from sandbox.settings import CompileMode, Settings
from sandbox.values import RawTensor, Values
from sandbox.verdict import ProblemStatus
from sandbox.weights import changed
from sandbox.workfolder import WorkFolder

if TYPE_CHECKING:
    from sandbox.gpu.buffers import Layout
    from sandbox.gpu.session import GpuSession

PATIENCE = 10
"""A reference may take this many times a candidate's call limit: float64 is slow."""
COMPILING_S = 1200
"""For all compilation by torch.compile, which may try out dozens of kernels."""


def operation(problem: Problem) -> str:
    """What workers are asked to do for this problem: `call`, or `backward` where gradients are wanted too."""
    return "call" if problem.direction == "forward" else "backward"


class Form(NamedTuple):
    """Which reference: how its baseline is computed, and whether its weights are those of the constructor."""

    compiled: CompileMode | None = None
    changed_weights: bool = False

    @property
    def baseline(self) -> str:
        """The name in the record."""
        return "eager" if self.compiled is None else f"torch.compile {self.compiled}"


PLAIN = Form()


class Compilation(NamedTuple):
    """How many graphs torch.compile has compiled, and how many it found compiled before."""

    made: int
    found: int

    @property
    def is_new(self) -> bool:
        """Whether there is anything that was not there before."""
        return self.made > 0 or self.found == 0


class ReferenceSession:
    """The problem's own code in its own child: constructor arguments, weights, inputs, expected values, baseline."""

    def __init__(
        self, problem: Problem, settings: Settings, form: Form = PLAIN, folder: WorkFolder | None = None
    ) -> None:
        """Of a compiled form, `compile` is due before the first call. The folder is removed with the child."""
        self.problem, self.settings, self.form = problem, settings, form
        self.compilation = Compilation(0, 0)
        self._folder = folder or WorkFolder()
        self._on_device: GpuSession | None = None
        try:
            self._session = open_session("reference", self._folder, settings)
        except BaseException:
            self._folder.close()
            raise
        try:
            with device_held(settings):
                self._session.greet()
                with self._translated():
                    self._load()
                    self._lend()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        limit = self.settings.start_timeout_s
        message = {
            "op": "load",
            "source": str(self._folder.write("reference.py", self.problem.source)),
            "seed": _seed(),
            "threads": self.settings.threads,
            "direction": self.problem.direction,
        }
        made = self._session.fetch(self._session.ask(message, limit))
        arguments, weights, changing = made.tree["l"]
        self.arguments = _own(arguments, made)
        self.weight_names = [name for name, _ in weights["d"]]
        self.weights = _own(weights, made)
        if self.form.changed_weights and self.weights.tensors:
            names = {item["v"] for item in changing["l"]}
            other = changed(self.weight_names, self.weights.tensors, names, _seed())
            question = {"op": "weights", "names": self.weight_names}
            answer = self._session.ask(question, limit, Values(self.weights.tree, tuple(other)))
            self.weights = self._session.fetch(answer)

    def _lend(self) -> None:
        if not self.settings.gpu:
            self._sample = self.draw()
            self._session.lend(self._sample)
            return
        from sandbox.gpu.session import GpuSession

        assert isinstance(self._session, GpuSession)
        self._on_device = session = self._session
        session.to_device(self.problem.precision)
        session.trust_results()
        self.layout: Layout = session.layout(_seed(), self._patience_s)
        session.lend_layout(self.layout)
        if not session.can_be_mapped():
            session.lend_outputs(self.result_sizes[1])

    @cached_property
    def result_sizes(self) -> tuple[int, int]:
        """On a device: bytes of a result, and of its float64 form."""
        assert self._on_device is not None
        with self._translated():
            return self._on_device.size(self.problem.direction != "forward", self.draw())

    @property
    def switches(self) -> dict[str, Any]:
        """On a device: torch's precision switches as the child reported them."""
        return self._on_device.switches if self._on_device else {}

    def work(self) -> dict[str, Any]:
        """What `sandbox.floor.trace` finds that the problem needs; nothing is computed."""
        values = self.draw()
        with self._translated():
            question = {"op": "trace", "arguments": values.tree}
            answer = self._session.ask(question, self._patience_s)
            work = answer.get("work")
            return work if isinstance(work, dict) else {}

    def draw(self) -> Values:
        """Fresh inputs under a seed from the operating system that nobody else learns."""
        with self._translated():
            if self._on_device is not None:
                return self._on_device.draw(_seed(), self._patience_s)
            return self._session.fetch(self._session.ask({"op": "draw", "seed": _seed()}, self.settings.call_timeout_s))

    def admit(self, worker: Session) -> None:
        """Prepare a candidate's worker before its source runs: on a device, lend it memory like this child's."""
        if self._on_device is not None:
            assert isinstance(worker, type(self._on_device))
            worker.admit(self.layout, self.result_sizes[0])

    def equip(self, worker: Session) -> None:
        """Prepare it once its model stands and has its weights: lend it memory, or move the model to the device."""
        if self._on_device is None:
            worker.lend(self._sample)
        else:
            assert isinstance(worker, type(self._on_device))
            worker.to_device(self.problem.precision)

    def call(self, values: Values) -> Timed:
        """The reference as it stands: the baseline's time, and what its dtype can reach."""
        with self._translated():
            return self._session.call(values, self._patience_s, operation(self.problem))

    def call_ms(self, values: Values) -> float:
        """The baseline's time alone."""
        with self._translated():
            return self._session.call_ms(values, self._patience_s, operation(self.problem))

    def exact(self, values: Values) -> Values:
        """The reference in float64."""
        with self._translated():
            return self._session.call(values, self._patience_s, f"exact {operation(self.problem)}").output

    def burst(self, values: Sequence[Values], runs: int) -> tuple[float, float]:
        """On a device: as many calls in one go as there are values, the best of several runs.

        What the judge's clock shows beyond the device's events, and one call's part of these, in ms.
        """
        from sandbox.gpu.merging import merged

        session, whole = self._on_device, merged(values)
        assert session is not None
        op = "burst" if operation(self.problem) == "call" else f"burst {operation(self.problem)}"
        with self._translated():
            session.lend(whole)
            try:
                found = [_both_clocks(session.call(whole, self._patience_s, op)) for _ in range(1 + runs)][1:]
            finally:
                session.lend_layout(self.layout)
        return min(bound - events for bound, events in found), min(events for _, events in found) / len(values)

    def compile(self) -> None:
        """From now on calls are those of the compiled model; all compilation is done when this returns."""
        with device_held(self.settings), self._translated(f" under {self.form.baseline}"):
            values = self.draw()
            self._session.ask({"op": "compile", "mode": self.form.compiled}, self.settings.start_timeout_s)
            self._session.call_ms(values, COMPILING_S, operation(self.problem))
            told = self._session.ask({"op": "compilations"}, self.settings.start_timeout_s)
        self.compilation = Compilation(made=int(told["made"]), found=int(told["found"]))

    def expect(self, result_bytes: int) -> None:
        """Prepare for results of this size."""
        with self._translated():
            self._session.expect(result_bytes)

    def nothing_ms(self) -> float:
        """What a call that does nothing takes."""
        with self._translated():
            return self._session.nothing_ms()

    @property
    def _patience_s(self) -> float:
        return PATIENCE * self.settings.call_timeout_s

    @cached_property
    def status(self) -> ProblemStatus:
        """Whether trivial answers fail on this problem."""
        values = self.draw()
        self._refuse_chance(values, self.call(values).output)
        return quick_status(self, tolerance_of(self.problem), self.problem.values.without)

    def _refuse_chance(self, values: Values, once: Values) -> None:
        """A reference that answers the same values differently (dropout in training mode) has no right answer."""
        if mismatch(self.call(values).output, once, once, tolerance_of(self.problem)):
            raise UnsupportedProblem(
                f"the reference of {self.problem.name} gives two answers for the same inputs, so no candidate can be "
                "right; take dropout and other draws out of forward, or call eval() in its constructor"
            )

    @contextmanager
    def _translated(self, how: str = "") -> Iterator[None]:
        """What goes wrong in this child is the problem's fault, said in one sentence; `how` is part of it."""
        name = self.problem.name
        remedy = f"judge without {self.form.baseline}" if how else "correct the problem file"
        try:
            yield
        except ChildLate:
            smaller = remedy if how else "make the problem smaller"
            raise BrokenProblem(f"the reference of {name} did not answer in time{how}; {smaller}") from None
        except Refused as error:
            if error.unsupported:
                raise UnsupportedProblem(f"the problem {name} can not be judged: {error}") from None
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None
        except (ChildGone, PeekError, Misbehaved) as error:
            raise BrokenProblem(f"the reference of {name} does not run{how}: {error}; {remedy}") from None

    @property
    def layers(self) -> tuple[str, ...]:
        """The isolation layers around the child."""
        return self._session.layers

    def close(self) -> None:
        """End the child."""
        try:
            self._session.close()
        finally:
            self._folder.close()


def _both_clocks(timed: Timed) -> tuple[float, float]:
    events = timed.device.device_ms if timed.device else None
    return timed.milliseconds, events or timed.milliseconds


def _seed() -> int:
    return secrets.randbits(63)


def _own(tree: dict[str, object], made: Values) -> Values:
    """A part of a bigger value with only its own tensors, renumbered."""
    tensors: list[RawTensor] = []

    def renumber(node: dict[str, object]) -> dict[str, object]:
        ((kind, body),) = node.items()
        if kind == "t":
            tensors.append(made.tensors[int(str(body))])
            return {"t": len(tensors) - 1}
        if kind in ("l", "p") and isinstance(body, list):
            return {kind: [renumber(item) for item in body]}
        if kind == "d" and isinstance(body, list):
            return {"d": [[key, renumber(item)] for key, item in body]}
        return node

    renumbered = renumber(tree)
    return Values(renumbered, tuple(tensors))
