"""The problem's own code in its own child: arguments, weights, inputs, expected values and the baseline's time."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from problems import Problem
from sandbox.children import ChildGone, ChildLate
from sandbox.compare import tolerance_of
from sandbox.errors import BrokenProblem
from sandbox.lint import problem_status
from sandbox.peek import PeekError
from sandbox.sessions import Misbehaved, Refused, Session, Timed
from sandbox.settings import Settings
from sandbox.values import RawTensor, Values
from sandbox.verdict import ProblemStatus
from sandbox.workfolder import WorkFolder

PATIENCE = 10
"""A reference may take this many times a candidate's call limit: float64 is slow."""


class ReferenceSession:
    """The problem's own code in its own child: constructor arguments, weights, inputs, expected values, baseline."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self._folder = WorkFolder()
        self._session = Session("reference", self._folder, settings)
        source = self._folder.write("reference.py", problem.source)
        message = {"op": "load", "source": str(source), "seed": _seed(), "threads": settings.threads}
        try:
            self._session.greet()
            with self._translated():
                made = self._session.fetch(self._session.ask(message, settings.start_timeout_s))
                arguments, weights = made.tree["l"]
                self.arguments = _own(arguments, made)
                self.weight_names = [name for name, _ in weights["d"]]
                self.weights = _own(weights, made)
                self._session.lend(self.draw())
        except BaseException:
            self.close()
            raise

    def draw(self) -> Values:
        """Fresh inputs under a seed from the operating system that nobody else learns."""
        with self._translated():
            return self._session.fetch(self._session.ask({"op": "draw", "seed": _seed()}, self.settings.call_timeout_s))

    def call(self, values: Values) -> Timed:
        """The reference as it stands: the baseline's time, and what its dtype can reach."""
        with self._translated():
            return self._session.call(values, PATIENCE * self.settings.call_timeout_s)

    def exact(self, values: Values) -> Values:
        """The reference in float64."""
        with self._translated():
            return self._session.call(values, PATIENCE * self.settings.call_timeout_s, "exact").output

    @cached_property
    def status(self) -> ProblemStatus:
        """Whether trivial answers fail on this problem, tried on two draws of its inputs."""
        draws = []
        for _ in range(2):
            values = self.draw()
            draws.append((values, self.exact(values), self.call(values).output))
        return problem_status(draws[0], draws[1], tolerance_of(self.problem))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What goes wrong in this child is the problem's fault, said in one sentence."""
        name = self.problem.name
        try:
            yield
        except ChildLate:
            raise BrokenProblem(f"the reference of {name} did not answer in time; make the problem smaller") from None
        except (Refused, ChildGone, PeekError, Misbehaved) as error:
            raise BrokenProblem(f"the reference of {name} does not run: {error}; correct the problem file") from None

    def close(self) -> None:
        """End the child."""
        self._session.close()
        self._folder.close()


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
