"""How accurate the baselines beside strict eager are: each is held to the bound that candidates are held to."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.timed_call import Timed
from kernelwright.sandbox.correctness.compare import (
    Checks,
    ExactCase,
    Shares,
    add_shares,
    mismatch,
    mismatch_shaken,
    tolerance_of,
)
from kernelwright.sandbox.correctness.families import DRAWN, Domain, vary
from kernelwright.sandbox.tensors.values import Values


class BaselineErrors(NamedTuple):
    """The errors of one baseline on all input distributions."""

    errors: Shares
    """As `Evidence.errors` has them."""
    is_equal: bool
    """Whether each result was right as a candidate's has to be."""


def accuracy_of(
    baselines: Mapping[str, Callable[[Values], Timed]], eager: ReferenceSession, domain: Domain
) -> dict[str, BaselineErrors]:
    """Compare baselines that have the weights of `eager` with it and with float64, on every input distribution."""
    found, tolerance = dict.fromkeys(baselines, BaselineErrors({}, True)), tolerance_of(eager.problem)
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
            output = call(values).output
            wrong = mismatch_shaken(output, asked, near, tolerance, shares)
            if family == DRAWN:
                mismatch(output, near, near, tolerance_of(eager.problem, "kernelbench"), Checks(shares=shares))
            eager.let_go()
            errors, is_equal = found[name]
            add_shares(shares, errors)
            found[name] = BaselineErrors(shares, is_equal and wrong is None)
    return found


def _exact(eager: ReferenceSession, near: Values, values: Values, want: Values, asked: Values) -> Values:
    return want if asked is values else eager.exact(asked, near)
