"""Checks of a candidate's results, and the candidate under check.

A check is one entry of `CHECKS`: a name, a description, cases to call both sides on, and what to test after a call. The
judge runs all entries in order, lets `JudgeSettings.without` switch each off by its name, and stores what they return.
"""

from collections.abc import Callable, Collection, Generator
from contextlib import closing
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch

from kernelwright.sandbox.calls.reference import ReferenceSession, fresh_seed, operation
from kernelwright.sandbox.calls.sessions import BAD_RUNS, Session, Timed
from kernelwright.sandbox.correctness.compare import (
    IEEE,
    KERNELBENCH,
    PLAIN,
    Checks,
    ExactCase,
    Shares,
    Wrong,
    add_shares,
    are_within,
    is_right_anyhow,
    mismatch,
    mismatch_shaken,
    tolerance_of,
)
from kernelwright.sandbox.correctness.families import DRAWN
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baselines import PERMITTING, Baselines
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.settings import Accuracy, Defence, JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Evidence
from kernelwright_child.driver import CudaError

OTHER_WEIGHTS = "as drawn, once other weights were copied into its parameters"
ANOTHER_SEED = "as drawn, with both models constructed again under another seed"
OTHER_SEEDS = 2
Cases = Generator[tuple[str, Values], None, None]
"""Inputs in words, as in a reason, and the values. Both sides are called between two cases, so a generator can prepare
them before a case and restore them after it."""


AGAIN = {
    True: "a second call on these inputs gives the same result: no race, but wrong indices, formula or precision",
    False: "a second call on these values gives another result: a race, memory that is not written, or atomics",
    None: "",
}
"""What it says of a wrong result whether a second call gives the same."""


class Call(NamedTuple):
    """A call of both sides on the same values."""

    inputs: str
    """The input distribution, or what else is special, as in a reason."""
    values: Values
    mine: Timed
    theirs: Timed


class DrawingReference(Exception):
    """The reference itself draws in `forward`: results can be compared only where both sides are seeded alike."""


class FreshInputs(Protocol):
    """A source of inputs that nobody has seen before."""

    def in_turn(self, number: int, families: Collection[str]) -> Cases:
        """Inputs of each of these distributions for a worker pair, while nothing is timed."""


class Trial:
    """A candidate under check: its worker, the reference with the same weights, and what was found so far."""

    fresh: FreshInputs
    session: Session
    """The worker of the candidate."""
    reference: ReferenceSession
    """The reference whose arguments and weights that worker has."""

    def __init__(self, baselines: Baselines, settings: JudgeSettings) -> None:
        self._baselines, self._settings = baselines, settings
        self.problem = baselines.problem
        self.operation = operation(self.problem)
        self.tolerance = tolerance_of(self.problem, settings.accuracy)
        self.allowed = IEEE
        self.number = 0
        """Of the present worker pair, counted from 0."""
        self.is_seeded, self.draws_constants = False, False
        """Whether both models are constructed under one seed, and then draw what torch's layers set to constants."""
        self.errors: Shares = {}
        """The largest so far, as `Evidence.errors` has them."""
        self.seen: dict[str, Any] = {}
        """Results of the checks by their names: evidence of the verdict."""
        self._tested: set[str] = set()

    def has(self, name: Defence | str) -> bool:
        """Return whether a check or another defence is switched on."""
        return name not in self._settings.without

    def call(self, values: Values) -> Timed:
        """Call the candidate."""
        raise NotImplementedError

    def run(self, moment: "Moment", call: Call) -> None:
        """Run all checks of a moment on a call. Raises `StageFailed`."""
        for check in CHECKS:
            if check.after and moment == check.moment and self.has(check.name):
                found = check.after(self, call)
                if found is not None:
                    self.seen[check.name] = found

    def run_last(self) -> None:
        """Run the checks that make calls of their own, with the worker pair that was timed last.

        So a verdict is about all input distributions, however early it came, and does not hang on which were drawn.
        """
        for check in CHECKS:
            if check.cases is not None and self.has(check.name):
                with closing(check.cases(self)) as cases:
                    for inputs, values in cases:
                        mine, theirs = self.call(values), self.reference.show(values)
                        if not self.excludes(inputs, theirs, values):
                            self.run("each call", Call(inputs, values, mine, theirs))
                        del values, mine, theirs  # before others take their place

    @property
    def untested(self) -> list[str]:
        """The input distributions that the problem is judged on and no call has tested."""
        checked = self._settings.varies_inputs and self.has("timed_check")
        return [family for family in self._baselines.domain.families if checked and family not in self._tested]

    def excludes(self, family: str, theirs: Timed, values: Values) -> bool:
        """Return whether nothing can be compared on these values, since float64 gives only NaN."""

        def exact() -> Values:
            self.reference.keep(theirs.output)  # which is still needed
            return self.reference.exact(values)

        return self._baselines.domain.excludes(family, theirs.output, exact)

    def compare(self, call: Call) -> None:
        """Compare a result with the reference's. Raises `StageFailed`, or `DrawingReference`."""
        self._tested.add(call.inputs)
        got, theirs, errors = call.mine.output, call.theirs.output, Shares()
        if is_right_anyhow(got, theirs, self.tolerance, self.errors):
            return
        near, is_drawn = self.reference.keep(theirs), call.inputs == DRAWN
        seeded, accuracy = self._baselines.is_seeded, self._settings.accuracy
        # Its distance from a float64 that draws something else would excuse anything. Values as drawn come first.
        if not seeded and is_drawn and self.reference.is_random_on(call.values, near):
            raise DrawingReference
        if seeded or accuracy == KERNELBENCH:  # seeded alike, float64 would draw something else
            wrong = mismatch(got, near, near, self.tolerance, Checks(shares=errors))
        else:
            defines_nan = self._baselines.domain.defines_nan(call.inputs)
            asked = ExactCase(call.values, lambda other: self.reference.exact(other, near), defines_nan)
            wrong = mismatch_shaken(got, asked, near, self.tolerance, errors)
        if is_drawn and KERNELBENCH not in errors and (wrong is None or wrong.by_distance):
            mismatch(got, near, near, tolerance_of(self.problem, KERNELBENCH), PLAIN._replace(shares=errors))
        self.reference.release_result()
        add_shares(self.errors, errors)
        if wrong is not None and not self.allows(wrong, errors):
            reason = f"{wrong.reason} (on inputs {call.inputs}){self._wider(wrong, errors)}"
            same = self._is_same_again(call)
            log = "\n".join(part for part in (wrong.details, AGAIN[same]) if part)
            raise StageFailed("check", reason, log, is_unsteady=same is False)

    def _is_same_again(self, call: Call) -> bool | None:
        """Return whether a second call on the same values gives the same result; None where it gives none."""
        try:
            return self.call(call.values).output == call.mine.output
        except (*BAD_RUNS, StageFailed, MachineError, torch.OutOfMemoryError, CudaError):
            return None

    def allows(self, wrong: Wrong, errors: Shares) -> bool:
        """Return whether an error beyond `ieee` is right at an accuracy between that and KernelBench's rule."""
        return self._settings.accuracy in PERMITTING and wrong.by_distance and are_within(errors, self.allowed)

    def _wider(self, wrong: Wrong, errors: Shares) -> str:
        """The end of the reason, where the same result is right at a wider accuracy."""
        accuracies: tuple[Accuracy, ...] = get_args(Accuracy)
        asked = self._settings.accuracy
        for other in accuracies[accuracies.index(asked) + 1 :] if wrong.by_distance else ():
            allowed = self._baselines.allowed(other, find=False)
            if allowed and (other in errors or other != KERNELBENCH) and are_within(errors, allowed):
                return f"; wrong at {asked}; within the bound of {other}"
        return ""


Moment = Literal["each call", "first call", "end"]


class Check(NamedTuple):
    """A test of a candidate. `JudgeSettings.without` disables it by its name, and its result is evidence under it."""

    name: str
    describe: str
    """A mistake or a cheat that passes where it is switched off."""
    moment: Moment
    """`each call`: each whose result is compared. `first call`: the first of the first worker. `end`: `cases` alone."""
    cases: Callable[[Trial], Cases] | None = None
    """Further calls, made of the worker that was timed last; their results are compared as any other."""
    after: Callable[[Trial, Call], object] | None = None
    """Test a call: raise `StageFailed`, or return what is evidence; None is none."""


def _repeats(trial: Trial, call: Call) -> bool:
    return call.mine.output == trial.call(call.values).output


def _later_state(trial: Trial) -> Cases:
    """Once more behind the timed calls, since a model may count them."""
    _state(trial)
    yield from ()


def _state(trial: Trial, call: Call | None = None) -> None:
    """Compare the model's buffers after a call, if the problem follows its state."""
    followed = bool(trial.reference.followed)
    if trial.problem.state != "followed" and not followed:
        return
    values, errors = call.values if call else trial.reference.draw(), Shares()
    got, want = trial.reference.state_after(trial.session, values)
    wrong = mismatch(got, want, want, trial.tolerance, Checks(shares=errors))
    if wrong and not trial.allows(wrong, errors):
        where = "in ModelNew" if followed else "a buffer of ModelNew after a call:"
        raise StageFailed("check", f"{where} {wrong.reason}", wrong.details)


def _other_weights(trial: Trial) -> Cases:
    """With gradients alone: training changes the weights after every call."""
    if trial.problem.direction != "forward" and trial.reference.weights.tensors:
        with trial.reference.reweighted() as weights:
            trial.session.copy_weights(trial.reference.weight_names, weights)
            yield OTHER_WEIGHTS, trial.reference.draw()
        trial.session.copy_weights(trial.reference.weight_names, trial.reference.weights)


def _other_seeds(trial: Trial) -> Cases:
    """Construct models that share a seed again under two others, so that a check covers at least three."""
    for _ in range(OTHER_SEEDS if trial.is_seeded else 0):
        seed = fresh_seed()
        with trial.reference.seeded(seed, trial.draws_constants):
            trial.session.construct_seeded(seed, trial.draws_constants)
            if trial.has("weights"):
                trial.reference.replace_constants(trial.session)
            yield ANOTHER_SEED, trial.reference.draw()


CHECKS = (
    Check("result", "a wrong result", "each call", after=Trial.compare),
    Check("deterministic", "results that differ from call to call", "first call", after=_repeats),
    Check("state", "buffers that a call leaves as they were", "first call", cases=_later_state, after=_state),
    Check(
        "families",
        "a kernel that is right on pleasant inputs alone",
        "end",
        cases=lambda trial: trial.fresh.in_turn(trial.number, trial.untested),
    ),
    Check("weights", "what the first call made of the weights, kept for ever", "end", cases=_other_weights),
    Check("seeds", "a kernel that is right for the weights of one seed", "end", cases=_other_seeds),
)
"""All checks in the order in which they run; `seeds` is last, since it leaves the candidate with other weights."""


def require_known(names: Collection[str]) -> None:
    """Raise `ValueError` for the name of a defence that is neither a check nor one that is built into the judge."""
    known = {*get_args(Defence), *(check.name for check in CHECKS)}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"no defence {unknown[0]!r}; there are: {', '.join(sorted(known))}")


def evidence_of(seen: dict[str, Any]) -> dict[str, Any]:
    """Fields of `Evidence` from results of checks: those of a field's name, and the others together."""
    own = {name: found for name, found in seen.items() if name in Evidence.model_fields}
    return own | {"checks": {name: found for name, found in seen.items() if name not in own}}
