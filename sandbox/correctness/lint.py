"""Does a problem notice a lazy answer, and can it be timed? What is asked of a problem before it is ranked.

A problem that accepts an answer without work is weak, and so is one whose time or values say nothing.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import LOWER_PRECISION_ULP, PLAIN, Rule, mismatch
from kernelwright.sandbox.correctness.distance import measure
from kernelwright.sandbox.correctness.families import DRAWN, FAMILIES, is_nan_only, vary
from kernelwright.sandbox.tensors import RawTensor, Values, changed_inputs
from kernelwright.sandbox.verdict.verdicts import ProblemStatus


class Case(NamedTuple):
    """One set of inputs with what the reference makes of them."""

    inputs: Values
    exact: Values
    """In float64."""
    result: Values
    """In the reference's own dtype."""


class OtherCase(NamedTuple):
    """Another set of inputs with the reference's result: what a lazy candidate might answer instead."""

    inputs: Values
    result: Values


Make = Callable[[], Values]
"""Values are made one after the other, and none is kept: each may take gigabytes."""


def lazy_answers(case: Case, other: OtherCase, lower_precision: bool) -> Iterator[tuple[str, Make]]:
    """By name, what a lazy candidate might return. `lower_precision`: whether less than the dtype's own counts."""
    result = case.result
    for name, change in CHANGES.items():
        yield name, partial(_each, result, change)
    yield "the result for other inputs", lambda: other.result
    if lower_precision and any(tensor.dtype in LOWER for tensor in result.tensors):
        yield f"the result rounded to {_lower(result)}", partial(_each, result, rounded)
    after = changed_inputs(result)
    if after:
        kept = {number: case.inputs.tensors[index] for index, number in after.items()}
        left = tuple(kept.get(number, raw) for number, raw in enumerate(result.tensors))
        yield "the inputs left as they were", lambda: result._replace(tensors=left)
    for index, tensor in enumerate(case.inputs.tensors):
        if len(result.tensors) == 1 and tensor[:2] == result.tensors[0][:2]:
            yield f"input {index} passed through", partial(Values, result.tree, (tensor,))


def lazy_inputs(case: Case, other: OtherCase, lower_precision: bool) -> Iterator[tuple[str, Make]]:
    """By name, other inputs than those that were given, for which a lazy candidate might compute."""
    tensors, changed = case.inputs.tensors, changed_inputs(case.result)
    for index, (mine, theirs) in enumerate(zip(tensors, other.inputs.tensors, strict=True)):
        if mine[:2] == theirs[:2] and mine.data != theirs.data:
            yield f"the result for another input {index}", partial(_with, case.inputs, index, theirs)
    for index, raw in enumerate(tensors):
        is_constant = index in changed and raw == other.inputs.tensors[index]  # as what is only written
        tensor = raw.tensor()
        can_be_cut = tensor.is_floating_point() and tensor.dim() and tensor.shape[-1] >= 2 and tensor.numel()
        if can_be_cut and not is_constant:
            yield f"the result without the last eighth of input {index}", partial(_cut, case.inputs, index)
    if lower_precision and any(tensor.dtype in LOWER for tensor in tensors):
        yield f"the result for inputs rounded to {_lower(case.inputs)}", partial(_each, case.inputs, rounded)


PIECE = 2**22
"""Elements that are widened or rounded together."""
LOWER = {"float32": torch.bfloat16, "float64": torch.float32}
"""The next dtype that a lazy candidate would compute in."""


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the next lower precision, widened again."""
    lower = LOWER.get(str(tensor.dtype).removeprefix("torch."))
    if lower is None:
        return tensor
    made = tensor.clone()
    for piece in torch.split(made.view(-1), PIECE):
        piece.copy_(piece.to(lower))
    return made


def _lower(values: Values) -> str:
    names = [LOWER[tensor.dtype] for tensor in values.tensors if tensor.dtype in LOWER]
    return str(names[0]).removeprefix("torch.")


# Where an answer is what a right one would be, as with an axis of length 1, zeros stand in for it.
def _each(values: Values, change: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    return Values(values.tree, tuple(RawTensor.of(change(raw.tensor())) for raw in values.tensors))


def _with(values: Values, index: int, tensor: RawTensor) -> Values:
    return Values(values.tree, (*values.tensors[:index], tensor, *values.tensors[index + 1 :]))


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_zeros(()).expand(tensor.shape)


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    if not _has_a_mean(tensor) or tensor.numel() == 1:
        return _zeros(tensor)  # of a single value it would be the right answer
    total = sum(float(piece.sum(dtype=torch.float64)) for piece in torch.split(tensor.reshape(-1), PIECE))
    return tensor.new_tensor(total / tensor.numel()).expand(tensor.shape)


def _mean_along(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """By pieces across the axis: a sum in float64 widens what it sums first."""
    if not _has_a_mean(tensor) or not tensor.dim() or tensor.shape[axis] == 1:
        return _zeros(tensor)
    length = tensor.shape[axis]
    matrix = tensor.reshape(length, -1).T if axis == 0 else tensor.reshape(-1, length)
    parts = torch.split(matrix, max(1, PIECE // length))
    means = torch.cat([rows.mean(1, dtype=torch.float64).to(tensor.dtype) for rows in parts])
    return means.view(tensor.narrow(axis, 0, 1).shape).expand(tensor.shape)


def _has_a_mean(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel()) and not tensor.is_complex()


def _first(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() < 2:
        return _zeros(tensor)
    return tensor.reshape(-1)[:1].expand(tensor.numel()).view(tensor.shape)


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    several = tensor.dim() and tensor.numel() and tensor.shape[0] > 1
    return tensor[:1].expand(tensor.shape) if several else _zeros(tensor)


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": _zeros,
    "the mean of the output everywhere": _mean,
    "the first element everywhere": _first,
    "the mean along axis 0, repeated": partial(_mean_along, axis=0),
    "the mean along the last axis, repeated": partial(_mean_along, axis=-1),
    "the first index of axis 0, repeated": _repeated,
}


def _cut(values: Values, index: int) -> Values:
    """Zeros in the last eighth of the last axis of one input."""
    short = values.tensors[index].copied()
    tensor = short.tensor()
    tensor[..., -max(1, tensor.shape[-1] // 8) :] = 0
    return _with(values, index, short)


OVERALL = PLAIN._replace(usual=False, slices=False)
"""Bound of rounding in another order: a slice or a usual element may rest on few elements near zero."""
SEEDED = 4
"""Calls that are seeded alike: sums in no fixed order may come out alike by chance."""


def draws(again: Values, first: Values, tolerance: Tolerance, seeded: Callable[[], Values]) -> bool:
    """Return whether a reference draws, from two results on the same values.

    Where only small parts of an output differ, `seeded` gives more, with all generators seeded alike before each: what
    draws repeats itself bit by bit then. Its results have to stay what they are, whatever is asked next, and so has
    `first`; `again` is not looked at once it was called.
    """
    if mismatch(again, first, first, tolerance, PLAIN) is None:
        return False
    if mismatch(again, first, first, tolerance, OVERALL) is not None:
        return True
    one = seeded()
    return all(seeded() == one for _ in range(SEEDED - 1))


CALLS, MOST_CALLS = 5, 50
"""Timed calls of each kind before a problem is fit to be timed, and before it is found too short."""
SHORT = 2.0
"""A call must take this many times what a call that does nothing takes."""
ROUGH = {2: 0.1, 4: 0.01, 8: 1e-6}
"""By bytes of an element: above this relative error of the reference, right and wrong cannot be distinguished."""
SEED = 1
"""Before calls whose draws are to be alike."""


class TimedResult(Protocol):
    @property
    def output(self) -> Values: ...


class Called(Protocol):
    def call(self, values: Values) -> TimedResult: ...


class RunningReference(Called, Protocol):
    """A problem's reference that runs somewhere, such as a `ReferenceSession`."""

    weights: Values

    def draw(self) -> Values: ...
    def call_ms(self, values: Values) -> float: ...
    def nothing_ms(self) -> float:
        """The time of a call that does nothing, on the same clock."""

    def exact(self, values: Values) -> Values:
        """The reference in float64; the result is there until the next question."""

    def keep(self, output: Values) -> Values:
        """A result of `exact` that stays what it is, whatever is asked next."""


class Finding(NamedTuple):
    """One thing that is wrong with a problem."""

    kind: str
    """In one word, such as `lazy`, `constant`, `random`, `short`."""
    evidence: str
    """A sentence, with figures where there are any."""
    weak: bool = True
    """Whether it makes the problem unfit for a ranking."""


def status_of(findings: list[Finding]) -> ProblemStatus:
    """`weak` where any finding says so, with all evidence."""
    weak = any(finding.weak for finding in findings)
    return ProblemStatus(status="weak" if weak else "ok", why=tuple(finding.evidence for finding in findings))


def quick_status(subject: RunningReference, tolerance: Tolerance, without: Collection[str] = ()) -> ProblemStatus:
    """`weak`, with a sentence for each lazy answer that passes on values as drawn and on all families, as in a judging.

    `without` are those that the problem is not judged on.
    """
    prober = _Prober(subject, tolerance)
    return status_of(_lazy(prober, _passing(prober), without))


def examine(subject: RunningReference, tolerance: Tolerance, reweighted: Called | None = None) -> list[Finding]:
    """All that a run can tell about a problem; `reweighted` is the same with other weights.

    Takes some twenty calls of the reference, half of them in float64.
    """
    prober = _Prober(subject, tolerance)
    again = subject.call(prober.case.inputs).output
    if draws(again, prober.case.result, tolerance, lambda: subject.call(prober.case.inputs._replace(seed=SEED)).output):
        return [_random(prober.case.result, again, tolerance)]  # nothing else would mean anything
    del again
    constant, passing, others = _constant(prober), _passing(prober), _independent(prober)
    weightless = reweighted if subject.weights.tensors else None
    if weightless and prober.accepts(weightless.call(prober.case.inputs).output, prober.case):
        others.append(Finding("weightless", "it accepts the result for other weights"))
    others += _rough(prober) + _labels(prober) + _short(prober)
    return constant + _lazy(prober, passing) + others


class _Prober:
    def __init__(self, subject: RunningReference, tolerance: Tolerance) -> None:
        self.subject, self.tolerance = subject, tolerance
        self.case, self.other = self.make(DRAWN), self.make_other(DRAWN)

    def make(self, family: str) -> Case:
        values = self.draw(family)
        return Case(values, self.subject.keep(self.subject.exact(values)), self.subject.call(values).output)

    def make_other(self, family: str) -> OtherCase:
        values = self.draw(family)
        return OtherCase(values, self.subject.call(values).output)

    def draw(self, family: str) -> Values:
        return vary(self.subject.draw(), family)

    def accepts(self, answer: Values, case: Case) -> bool:
        return mismatch(answer, case.exact, case.result, self.tolerance, PLAIN) is None


def _is_strict(tolerance: Tolerance) -> bool:
    return tolerance.floor_ulp < LOWER_PRECISION_ULP["tf32"]


def _passing(prober: _Prober) -> list[str]:
    """The lazy answers that would pass on values as they are drawn."""
    answers = lazy_answers(prober.case, prober.other, _is_strict(prober.tolerance))
    return [name for name, answer in answers if prober.accepts(answer(), prober.case)]


def _lazy(prober: _Prober, passing: list[str], without: Collection[str] = ()) -> list[Finding]:
    """Return those that pass on all input distributions. Call it last: it replaces the prober's own values."""
    for family in () if isinstance(prober.tolerance, Rule) else FAMILIES:
        if not passing or family in without:
            continue
        del prober.case, prober.other
        prober.case, prober.other = prober.make(family), prober.make_other(family)
        if is_nan_only(prober.case.exact):
            continue  # nor would the judge compare anything
        found = lazy_answers(prober.case, prober.other, _is_strict(prober.tolerance))
        passing = [name for name, answer in found if name in passing and prober.accepts(answer(), prober.case)]
    return [Finding("lazy", f"it accepts {name}") for name in passing]


def _independent(prober: _Prober) -> list[Finding]:
    return [
        Finding("independent", f"it accepts {name}")
        for name, inputs in lazy_inputs(prober.case, prober.other, _is_strict(prober.tolerance))
        if prober.accepts(prober.subject.call(inputs()).output, prober.case)
    ]


def _random(first: Values, again: Values, tolerance: Tolerance) -> Finding:
    """Return whether and how a reference draws, from two calls on the same values."""
    pairs = zip(first.tensors, again.tensors, strict=False)
    if any(_drops(one.tensor(), two.tensor()) for one, two in pairs):
        return Finding("dropout", "it drops values at random: two calls on the same values have zeros at other places")
    wrong = mismatch(again, first, first, tolerance)
    assert wrong is not None, "what draws differs"
    return Finding("random", f"the reference disagrees with itself on the same values: {wrong.reason}")


def _drops(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.shape != two.shape or not one.is_floating_point():
        return False
    share = 1 - int(one.count_nonzero()) / max(1, one.numel())
    return share > 0.01 and not torch.equal(one == 0, two == 0)


def _constant(prober: _Prober) -> list[Finding]:
    tensors, others = prober.case.inputs.tensors, prober.other.inputs.tensors
    if tensors and tensors == others:
        return [Finding("constant", "get_inputs gives the same values under every seed")]
    still = [number for number, (one, other) in enumerate(zip(tensors, others, strict=False)) if one == other]
    still = [number for number in still if number not in changed_inputs(prober.case.result)]
    said = "tensor {} of the inputs has the same values under every seed, so an answer may leave it out"
    return [Finding("still", said.format(number), weak=False) for number in still]


def _rough(prober: _Prober) -> list[Finding]:
    findings = []
    for index, (exact, near) in enumerate(zip(prober.case.exact.tensors, prober.case.result.tensors, strict=False)):
        tensor = near.tensor()
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        distance = measure(tensor, tensor, exact.tensor())
        if not distance.want.is_finite or not distance.error.is_finite:
            findings.append(
                Finding("overflow", f"output {index} has values that are not finite on plain inputs", False)
            )
        elif distance.error.norm > ROUGH[min(8, tensor.element_size())] * distance.want.norm:
            share = distance.error.norm / distance.want.norm if distance.want.norm else float("inf")
            said = f"output {index} of the reference is itself off by {100 * share:.3g} % from float64"
            findings.append(Finding("rough", said))
    return findings


def _labels(prober: _Prober) -> list[Finding]:
    """Floating inputs of whole numbers: labels would be changed into something else by the other families."""
    return [
        Finding("labels", f"input {index} is floating but holds whole numbers only; return labels as integers", False)
        for index, pair in enumerate(zip(prober.case.inputs.tensors, prober.other.inputs.tensors, strict=False))
        if all(_is_whole(raw.tensor()) for raw in pair)
    ]


def _is_whole(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    return bool((tensor == tensor.round()).all()) and bool((tensor != tensor.reshape(-1)[0]).any())


def _short(prober: _Prober) -> list[Finding]:
    subject = prober.subject
    call = nothing = float("inf")
    # The least of each: on a busy machine any one of them can take ten times as long, and so can a few in a row.
    for number in range(1, MOST_CALLS + 1):
        call = min(call, subject.call_ms(prober.case.inputs))
        nothing = min(nothing, subject.nothing_ms())
        if number >= CALLS and call >= SHORT * nothing:
            return []
    said = f"a call takes {call:.3g} ms, and one that does nothing {nothing:.3g} ms; make the problem larger"
    return [Finding("short", f"it is too short to be timed: {said}")]
