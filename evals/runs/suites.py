"""Named selections of problems."""

from kernelwright.agent.log.events import AtFault
from kernelwright.agent.providers.kinds.recorded import recorded_targets
from kernelwright.problems import ProblemError, catalog_names
from kernelwright.problems.formats import collections
from kernelwright.problems.formats.collections import HOMES, addresses
from kernelwright.problems.record.base import Record

SUITES = ("demo", "recorded", "catalog", "seeds")
"""`recorded`: the problems that ship with recorded answers; `demo`: as many of them as two cores judge in some minutes;
`catalog`: all that ship; `seeds`: the transposed convolutions that the project grew out of."""

DEMO = {
    "cpp": (
        "activation_chain",
        "argmax_rows",
        "conv_transpose2d_depthwise",
        "conv_transpose2d_strided_dilated",
        "cross_entropy",
        "max_pool2d",
        "min_max",
        "rms_norm",
    )
}
"""By target; a target that is left out shows all that it has."""

SEEDS = (
    "conv_transpose2d_strided_dilated",
    "conv_transpose2d_kernel3x5",
    "conv_transpose2d_kernel3x7",
    "conv_transpose2d_grouped_asymmetric",
)


class LeftOut(Record):
    """An entry of a suite that there is no problem of."""

    problem: str
    """Its address."""
    why: str
    fault: AtFault


def suite(name: str, target: str, dtype: str | None = None) -> tuple[str, ...]:
    """The problems of a suite, in order; `ProblemError` for an unknown name.

    `dtype`: what they are to be cast to; where no answer is recorded for that, they are the same as without.
    """
    if name == "demo":
        return DEMO.get(target) or _answered(target)
    if name == "recorded":
        return _answered(target, dtype) or _answered(target)
    if name == "catalog":
        return catalog_names()
    if name == "seeds":
        return SEEDS
    if _is_foreign(name):
        return addresses(name)
    raise ProblemError(f"no suite {name!r}; there are: {', '.join(SUITES)}")


def _answered(target: str, dtype: str | None = None) -> tuple[str, ...]:
    return tuple(problem for problem in catalog_names() if target in recorded_targets(problem, dtype=dtype))


def left_out(name: str) -> tuple[LeftOut, ...]:
    """The entries of a suite that can not be loaded; `suite` does without them."""
    entries = collections.left_out(name) if _is_foreign(name) else {}
    return tuple(
        LeftOut(problem=address, why=entry.why, fault="broken" if entry.status == "broken" else "unsupported")
        for address, entry in entries.items()
    )


def _is_foreign(name: str) -> bool:
    return ":" in name or name in HOMES
