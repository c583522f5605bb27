"""Is an output right? Decided by arithmetic: the float64 result, and what rounding alone does to the reference. Pure.

A candidate in dtype T may be off from float64 by `factor` times the error of the reference computed in T, never less
than `floor_ulp` units in the last place at the output's own scale: for the largest element, for the L2 norm, for the
usual element, so that many small ones beside a few huge ones count too, and for the L2 norm of each slice along the
first axis, so that small rows beside large ones do. The next lower precision is hundreds of units away, so it does not
pass.

A result that is small because large terms cancel keeps the rounding of these terms, whichever way they are added; its
own magnitude says nothing about that. An output that is the exact result of inputs off by a few units in the last place
is as right as its dtype allows: backward error, see Higham, Accuracy and Stability of Numerical Algorithms, 1.5.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from kernelwright.problems import Problem, Tolerance
from kernelwright.sandbox.correctness.distance import (
    Bound,
    Factors,
    Moved,
    Size,
    all_within,
    apart,
    finite,
    measure,
    share_lost,
    share_of_rule,
    slice_axis,
    worst,
)
from kernelwright.sandbox.correctness.patterns import describe_pattern, where
from kernelwright.sandbox.tensors import RawTensor, Values, flatten, show
from kernelwright.sandbox.verdict.errors import BrokenProblem
from kernelwright.sandbox.verdict.settings import Accuracy


class Wrong(NamedTuple):
    """Why an output was refused: a sentence first, then what helps to find the mistake."""

    reason: str
    details: str
    by_distance: bool = False
    """Whether it is of the right form and only too far from what is right."""


Shares = dict[str, float]
"""By measure, the largest error as a share of its bound: `largest`, `l2`, `usual`, `slice`. Above 1 it is wrong."""


class Checks(NamedTuple):
    """The comparisons to make: all, except where the use of one is tried."""

    structure: bool = True
    shape: bool = True
    dtype: bool = True
    places: bool = True
    """Whether each element has its own, where the reference's have."""
    masks: bool = True
    """Places of NaN and of both infinities."""
    largest: bool = True
    norm: bool = True
    usual: bool = True
    slices: bool = True
    pattern: bool = True
    """Whether the pattern of what is wrong is looked for, which costs more than to see that it is wrong."""
    undefined: bool = True
    """Places where float64 gives NaN; not on values outside of what the problem is defined for."""
    generous: bool = False
    """Whether the rounding of inputs excuses far more than it should: what is wrong even then is so beyond doubt."""
    shares: Shares | None = None
    """Filled with the errors of all outputs, where it is given."""
    moved: tuple[Moved, ...] = ()
    """By output, how far it moves with inputs that are off by what the tolerance allows: as far off is right too."""


SHORT_FLOOR_ULP = 2.0
"""The floor for outputs of 16 bits: their sums run in float32, so only the last rounding is theirs."""
MANY, SHORT_SHARE = 64, 0.5
"""With this many such elements rounding does not depend on luck, and this share of factor and floor is enough.

From float16 to bfloat16 it is three bits, no more than the factor. Sums in 16 bits are off by the root of their length.
"""
SURE_FACTOR, LARGEST_UNIT, USUAL_SHARE = 8.0, 0.5, 4.0
"""Within these, the same-dtype reference alone decides that an output is right; a little less would do."""
UNASKED: Shares = {"largest": 0.76, "l2": 0.76, "usual": 0.96, "slice": 0.76}
"""Limits of the errors of such outputs; see `is_right_anyhow`."""
IEEE: Shares = dict.fromkeys(UNASKED, 1.0)
BEYOND = 1e30
MOST_LOST = 0.25
"""Share of elements that may lack a correct digit, where a few are larger by orders and make up the norms."""
KERNELBENCH: Final = "kernelbench"
LOOKED_AT = 2**26
"""Elements of an output that are looked at together for where and how they are wrong."""
LOWER_PRECISION_ULP = {"strict": 0.0, "tf32": 2.0**13, "half": 2.0**16}
"""Units in the last place of float32 that one unit of TF32 (10 bits of fraction) or bf16 (7 bits) spans."""


class Rule(Tolerance):
    """KernelBench's, which takes the place of a problem's own: `torch.allclose` with the reference's result."""

    most: float
    """Both atol and rtol, by its `get_tolerance_for_precision`."""


def tolerance_of(problem: Problem, accuracy: Accuracy = "ieee") -> Tolerance:
    """The problem's tolerance, widened where its precision policy allows a lower precision inside float32."""
    if accuracy == KERNELBENCH:
        return Rule(most=1e-2 if problem.dtype in ("float16", "bfloat16") else 1e-4)
    floor = max(problem.tolerance.floor_ulp, LOWER_PRECISION_ULP[problem.precision])
    return problem.tolerance.model_copy(update={"floor_ulp": floor})


ALL = Checks()
PLAIN = Checks(pattern=False)


def mismatch(
    got: Values, exact: Values, same_dtype: Values, tolerance: Tolerance, checks: Checks = ALL
) -> Wrong | None:
    """The first thing in which `got` is wrong, or None; the others are the reference's in float64 and in its dtype."""
    mine, true, rounded = flatten(got), flatten(exact), flatten(same_dtype)
    rule = tolerance.most if isinstance(tolerance, Rule) else None
    if checks.structure and mine.shape != rounded.shape:
        return Wrong(f"the structure of the result is {show(mine.shape)}, the reference's is {show(rounded.shape)}", "")
    moved: Sequence[Moved | None] = checks.moved or (None,) * len(true.tensors)
    count = len(rounded.tensors)
    for other in (len(true.tensors), len(moved)):
        if other != count:  # some outputs would be compared with nothing
            said = f"the reference gives {count} tensors in its own dtype and {other} in float64; let it give as many"
            raise BrokenProblem(said)
    # Of one structure are as many; and without that check, nothing stands for everything.
    parts = zip(rounded.labels, mine.tensors, true.tensors, rounded.tensors, moved, strict=checks.structure)
    first = None
    for label, *tensors, more in parts:
        wrong = _form(label, tensors[0], tensors[2], checks)
        if rule is None:
            wrong = wrong or _values(label, tensors, more, tolerance, checks)
        else:
            wrong = wrong or _values_by_rule(label, tensors[0], tensors[2], rule, checks)
        if wrong and (checks.shares is None or not wrong.by_distance):
            return wrong
        if wrong and first is None:
            first, checks = wrong, checks._replace(pattern=False)
    return first


def is_right_anyhow(got: Values, near: Values, tolerance: Tolerance, shares: Shares | None = None) -> bool:
    """Return whether `mismatch` accepts `got` whatever the float64 result is; `near` is `same_dtype` there.

    In each norm, let d be the distance between the two and e the error of `near`; then `got` is off by d + e at most.
    With d at most u/2 of `near`, u being the floor relative to it: where e is at most u/4 of `near`, d + e is below
    the floor; where e is more, d is below 2 e, and d + e below 3 e, which half of the factor allows too.

    The usual magnitude is not a norm, but its root s is one of the kind that sums. With s(d) at most half of sqrt(u) of
    s(near): where s(e) is at least s(d)/1.8, both together are below sqrt(8) s(e), which the factor allows; where it is
    less, they are below 1.56 s(d), and s of the float64 result is above s(near) - s(d)/1.8, so above 1.56 s(d)/sqrt(u).

    `shares` is filled with limits of the errors where it is right: with x = d/u of `near`, (d + e) over the larger of
    factor e and the floor is largest where the two are equal, and is x + 1/factor there; `UNASKED` is that with x = 1/2
    and half of the factor. Of the usual element it is the square of the sum of the roots, with x = 1/4.
    """
    mine, reference = flatten(got), flatten(near)
    if isinstance(tolerance, Rule) or tolerance.factor < SURE_FACTOR or mine.shape != reference.shape:
        return False
    is_right = all(
        one == other or (_form("", one, other, ALL) is None and _is_near(one, other, tolerance))
        for one, other in zip(mine.tensors, reference.tensors, strict=True)
    )
    if is_right and shares is not None:
        add_shares(shares, UNASKED)
    return is_right


def add_shares(shares: Shares, more: Shares) -> None:
    """Keep the larger of each; a value that a record cannot hold becomes `BEYOND`."""
    for name, share in more.items():
        shares[name] = max(shares.get(name, 0.0), share if share <= BEYOND else BEYOND)


def are_within(shares: Shares, allowed: Shares) -> bool:
    return all(shares.get(name, 0.0) <= most for name, most in allowed.items())


def _is_near(one: RawTensor, other: RawTensor, tolerance: Tolerance) -> bool:
    got, near = real(one.tensor()), real(other.tensor())
    if not near.is_floating_point():
        return False
    unit = _floor(near, tolerance)
    if unit > LARGEST_UNIT:
        return False
    # What holds of every element holds of every size: each grows with any element's magnitude, and in proportion.
    if all_within(got, near, unit / max(2, USUAL_SHARE)):
        return True
    error, size = apart(got, near)
    if not (error.is_finite and size.is_finite):
        return False
    slices = error.slices is None or size.slices is None or bool((error.slices <= unit / 2 * size.slices).all())
    usual = error.usual is None or size.usual is None or error.usual <= unit / USUAL_SHARE * size.usual
    if error.usual is not None and share_lost(got, near, near) > MOST_LOST / 2:
        return False
    return slices and usual and error.largest <= unit / 2 * size.largest and error.norm <= unit / 2 * size.norm


def _floor(near: torch.Tensor, tolerance: Tolerance) -> float:
    """Relative error that is always allowed."""
    floor = min(tolerance.floor_ulp, SHORT_FLOOR_ULP) if near.dtype.itemsize <= 2 else tolerance.floor_ulp
    return float(_share(near) * floor * torch.finfo(near.dtype).eps)


def _share(near: torch.Tensor) -> float:
    """Of what is allowed in general: less where many elements of few bits tell what rounding does."""
    return SHORT_SHARE if near.dtype.itemsize <= 2 and near.numel() >= MANY else 1.0


def _form(label: str, mine: RawTensor, reference: RawTensor, checks: Checks) -> Wrong | None:
    if checks.shape and mine.shape != reference.shape:
        return Wrong(f"{label} has shape {list(mine.shape)}, the reference's is {list(reference.shape)}", "")
    if checks.dtype and mine.dtype != reference.dtype:
        return Wrong(f"{label} has dtype {mine.dtype}, the reference's is {reference.dtype}", "")
    if checks.places and mine.is_shared and not reference.is_shared:
        return Wrong(f"in {label} several elements share one place in memory; write each, as the reference does", "")
    return None


def _values(
    label: str, tensors: list[RawTensor], moved: Moved | None, tolerance: Tolerance, checks: Checks
) -> Wrong | None:
    got, want, near = (real(raw.tensor()) for raw in tensors)
    got = got.expand(near.shape)
    if not near.is_floating_point():
        return _exact_values(label, got, want, near)
    if not want.numel():
        return None
    unit = _floor(near, tolerance)
    distance = measure(got, near, want)
    if not all(size.is_finite for size in distance):
        wrong = _all_masks(label, got, want, near, checks) if checks.masks else None
        if wrong:
            return wrong
        distance, moved = measure(got, near, want, settled=True, undefined=checks.undefined), None
    factors = Factors(_share(near) * tolerance.factor, tolerance.factor)
    bound = Bound.of(distance.rounding, distance.want, factors, unit, want.numel())
    # A denormal may be taken for zero, and exponentials that are computed by hand end a little above it.
    bound = bound.at_least(2 * torch.finfo(torch.promote_types(near.dtype, torch.float32)).tiny, want.numel())
    counted = moved.pulled_back(got, checks.generous) if moved is not None else got
    error = measure(counted, near, want).error if moved is not None else distance.error
    lost = 0.0 if error.usual is None else share_lost(counted, near, want)
    if checks.shares is not None:
        add_shares(checks.shares, bound.shares(error) | ({"usual": BEYOND} if lost > MOST_LOST else {}))
    return _too_far(_Case(label, got, counted, near, want, checks), error, bound, lost)


def _values_by_rule(label: str, one: RawTensor, other: RawTensor, most: float, checks: Checks) -> Wrong | None:
    got, near = real(one.tensor()), real(other.tensor())
    share = share_of_rule(got, near, most)
    if checks.shares is not None:
        add_shares(checks.shares, {KERNELBENCH: share})
    if share <= 1:
        return None
    return _Case(label, got, got, near, near, checks).refused(f"not torch.allclose at atol = rtol = {most:g}", most)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, along one more axis; others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _all_masks(label: str, got: torch.Tensor, want: torch.Tensor, near: torch.Tensor, checks: Checks) -> Wrong | None:
    """By parts of the first axis: what is noted for each element takes memory too."""
    if got.numel() <= LOOKED_AT or not got.dim():
        if not checks.undefined:
            got, want, near = (torch.where(want.isnan(), 0.0, tensor) for tensor in (got, want, near))
        return _masks(label, got, want, near)
    step = max(1, LOOKED_AT * got.shape[0] // got.numel())
    for start in range(0, got.shape[0], step):
        # A single index may still be too much, and is then parted along the next axis.
        part, name = (slice(start, start + step), f"{start}:{start + step}") if step > 1 else (start, f"{start}")
        mine, true, theirs = (tensor[part] for tensor in (got, want, near))
        wrong = _all_masks(f"{label}[{name}]", mine, true, theirs, checks)
        if wrong:
            return wrong
    return None


def _masks(label: str, got: torch.Tensor, want: torch.Tensor, near: torch.Tensor) -> Wrong | None:
    """Compare the places of NaN and infinities; an overflow of the reference in a narrow dtype may be avoided."""
    for name, test in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        extra = test(got) & ~test(near) & ~test(want)
        missing = test(near) & ~test(got) & ~(torch.isfinite(want) & torch.isfinite(got))
        for verb, other, places in (("has", "has none", extra), ("lacks", "has one", missing)):
            if places.any():
                index = torch.nonzero(places)[0].tolist()
                spread = where(places) or f"{int(places.sum())} of {places.numel()} places"
                return Wrong(f"{label} {verb} {name} at {index}, where the reference {other} ({spread})", "")
    return None


class _Case(NamedTuple):
    label: str
    got: torch.Tensor
    counted: torch.Tensor
    """The same less what the rounding of inputs explains."""
    near: torch.Tensor
    want: torch.Tensor
    checks: Checks

    def refused(self, said: str, bound: float, only: int | None = None) -> Wrong:
        """The reason, the largest error's place and the pattern above `bound`; of this slice `only`, if given."""
        if not self.checks.pattern:
            return Wrong(f"{self.label} is wrong: {said}", "", by_distance=True)
        axis = slice_axis(self.want.shape)
        first = () if only is None else (*[slice(None)] * axis, slice(only, only + 1))
        index = worst(self.counted[first], self.want[first])
        around = _around(index, self.want[first].shape)
        if only is not None:
            index = (*index[:axis], only, *index[axis + 1 :])
            around = (*around[:axis], first[axis], *around[axis + 1 :])
        place = f"at {list(index)}: got {float(self.got[index]):.7g}, want {float(self.want[index]):.7g}"
        got, want = self.got[around].double(), self.want[around].double()
        if not math.isfinite(float(got.sum() + want.sum())):
            got, _, want = finite(got, self.near[around].double(), want, self.checks.undefined)
        pattern = describe_pattern(got, want, bound)
        if want.shape != self.want.shape:
            pattern = f"{pattern}\n  (of the part from {[axis.start for axis in around]} on, counted from there)"
        return Wrong(f"{self.label} is wrong: {said}, {place}; {pattern.splitlines()[0]}", pattern, by_distance=True)


def _around(index: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """A part around an element that is small enough to be looked at in every way."""
    left, found = math.prod(shape), []
    for place, size in zip(index, shape, strict=True):
        each = left // size
        count = min(size, max(1, LOOKED_AT // each))
        start = min(max(0, place - count // 2), size - count)
        found.append(slice(start, start + count))
        left = count * each
    return tuple(found)


def _too_far(case: _Case, error: Size, bound: Bound, lost: float) -> Wrong | None:
    checks = case.checks
    if checks.largest and not error.largest <= bound.largest:
        return case.refused(f"its largest error is {error.largest:.3g}, the bound {bound.largest:.3g}", bound.largest)
    if checks.norm and not error.norm <= bound.norm:
        said = f"the norm of its error is {error.norm:.3g}, the bound {bound.norm:.3g}"
        return case.refused(f"{said}; its largest error {error.largest:.3g}", bound.norm / math.sqrt(case.want.numel()))
    if checks.usual and error.usual is not None and bound.usual is not None and not error.usual <= bound.usual:
        said = f"its usual error is {error.usual:.3g}, the bound {bound.usual:.3g}"
        return case.refused(f"{said}; a few large elements hide it from other norms", bound.usual)
    if checks.usual and lost > MOST_LOST:
        return case.refused(f"{100 * lost:.0f} % of its elements have no correct digit; a few large ones hide it", 0.0)
    if checks.slices and bound.slices is not None and error.slices is not None:
        return _slice_too_far(case, error.slices, bound.slices)
    return None


def _slice_too_far(case: _Case, errors: torch.Tensor, bounds: torch.Tensor) -> Wrong | None:
    over = torch.nonzero(errors > bounds).flatten().tolist()
    if not over:
        return None
    index = max(over, key=lambda index: float(errors[index] / bounds[index]) if bounds[index] else math.inf)
    limit = float(bounds[index])
    said = (
        f"{len(over)} of {len(errors)} indices of axis {slice_axis(case.want.shape)} are off for their own magnitude; "
        f"at index {index} the norm of the error is {float(errors[index]):.3g}, the bound {limit:.3g}"
    )
    return case.refused(said, limit / math.sqrt(case.want.numel() / len(errors)), only=index)


def _exact_values(label: str, got: torch.Tensor, true: torch.Tensor, near: torch.Tensor) -> Wrong | None:
    """Integers and booleans: what the reference says, in its own dtype or in float64."""
    wrong = (got != near) & (got != true)
    if not wrong.any():
        return None
    index = torch.nonzero(wrong)[0].tolist()
    place = f"at {index}: got {got[tuple(index)].item()}, want {near[tuple(index)].item()}"
    pattern = describe_pattern(got.double(), torch.where(wrong, near, got).double(), 0.0)
    return Wrong(f"{label} is wrong: {place}; {pattern.splitlines()[0]}", pattern)


DRAWS = 6
"""One draw may leave a result where it was by chance."""


@dataclass
class ExactCase:
    """Inputs, and the reference in float64 on any; results on the same inputs may share one."""

    inputs: Values
    exact: Callable[[Values], Values]
    defines_nan: bool = True
    """Whether the values lie in the problem's domain, so that a NaN of the reference has to be matched."""
    moved: tuple[Moved, ...] = ()
    """Of each output; empty until a result was too far off."""

    def moved_by(self, draws: int, want: Values, units: float) -> tuple[Moved, ...]:
        """Ask the reference until there are so many draws, one after the other, since a result may take much memory."""
        want.owned()  # whoever is asked for others may show them where these are
        self.moved = self.moved or tuple(Moved(real(raw.tensor())) for raw in flatten(want).tensors)
        for _ in range(self.moved[0].draws, draws):
            shaken = flatten(self.exact(shake(self.inputs, units)))
            for output, raw in zip(self.moved, shaken.tensors, strict=True):
                output.note(real(raw.tensor()))
            del shaken
        return self.moved


def mismatch_shaken(
    got: Values, asked: ExactCase, near: Values, tolerance: Tolerance, shares: Shares | None = None
) -> Wrong | None:
    """As `mismatch`; where an output is too far off, the reference is asked again on shaken inputs.

    `near` is the reference as it is on the same inputs. `shares`, an empty one, is filled as in `Checks`.
    """
    want = asked.exact(asked.inputs)
    wrong = mismatch(got, want, near, tolerance, PLAIN._replace(undefined=asked.defines_nan, shares=shares))
    if wrong is None or not wrong.by_distance:
        return wrong
    moved = asked.moved_by(1, want, tolerance.floor_ulp)
    beyond_doubt = PLAIN._replace(undefined=asked.defines_nan, generous=True, moved=moved)
    if moved[0].draws > 1 or not mismatch(got, want, near, tolerance, beyond_doubt):
        asked.moved_by(DRAWS, want, tolerance.floor_ulp)
    if shares is not None:
        shares.clear()
    return mismatch(got, want, near, tolerance, Checks(undefined=asked.defines_nan, shares=shares, moved=moved))


def shake(values: Values, units: float) -> Values:
    """Each floating-point element off by up to this many units in the last place of float32, evenly distributed.

    Of float64 where it has that dtype; 16 bits do not hold so small a change and stay as they are. Were each off by
    exactly so much, up or down, then two elements whose difference counts would move alike in every other draw.
    """
    draw = random.SystemRandom()
    return Values(values.tree, tuple(_shaken(raw, units, draw.getrandbits(60)) for raw in values.tensors))


def _shaken(raw: RawTensor, units: float, seed: int) -> RawTensor:
    tensor = raw.tensor()
    if not tensor.is_floating_point():
        return raw
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    step = units * torch.finfo(dtype).eps
    generator = torch.Generator(tensor.device).manual_seed(seed)
    drawn = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=dtype)
    return RawTensor.of((tensor * (1 + step * (2 * drawn - 1))).to(tensor.dtype))
