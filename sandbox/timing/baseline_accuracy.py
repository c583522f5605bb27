"""How accurate the baselines beside strict eager are: each is held to the bound that candidates are held to."""

from collections.abc import Callable, Mapping
from functools import partial

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.timed_call import Timed
from kernelwright.sandbox.correctness.compare import Shares, tolerance_of
from kernelwright.sandbox.correctness.conditioning import ExactCase, mismatch_shaken
from kernelwright.sandbox.correctness.domain import Domain
from kernelwright.sandbox.correctness.families import DRAWN, vary
from kernelwright.sandbox.tensors.values import Values


class Accuracy(Record):
    """The errors of one baseline on all input distributions."""

    errors: dict[str, float] = Field(default_factory=dict)
    """The largest of each measure, as a share of a candidate's bound."""
    is_equal: bool = True
    """Whether nothing was wrong with a result, as a candidate's is checked."""

    def and_on(self, shares: Shares, is_right: bool) -> "Accuracy":
        """With those of one more distribution."""
        errors = {name: max(share, self.errors.get(name, 0.0)) for name, share in shares.items()}
        return Accuracy(errors=self.errors | errors, is_equal=self.is_equal and is_right)


def accuracy_of(
    baselines: Mapping[str, Callable[[Values], Timed]], eager: ReferenceSession, domain: Domain
) -> dict[str, Accuracy]:
    """Compare baselines that have the weights of `eager` with it and with float64, on every input distribution."""
    found = dict.fromkeys(baselines, Accuracy())
    for family in (DRAWN, *domain.families):
        values = vary(eager.draw(), family, in_place=True)
        near = eager.keep(eager.show(values).output)
        want = eager.keep(eager.exact(values, near))
        exact = partial(_exact, eager, near, values, want)
        if domain.excludes(family, near, partial(exact, values)):
            continue
        asked = ExactCase(values, exact, domain.defines_nan(family))
        for name, call in baselines.items():
            shares: Shares = {}
            wrong = mismatch_shaken(call(values).output, asked, near, tolerance_of(eager.problem), shares)
            eager.let_go()
            found[name] = found[name].and_on(shares, wrong is None)
    return found


def _exact(eager: ReferenceSession, near: Values, values: Values, want: Values, asked: Values) -> Values:
    return want if asked is values else eager.exact(asked, near)
