"""Named selections of problems."""

from agent.providers.recorded import recorded_targets
from problems import ProblemError, catalog_names
from problems.formats.collections import HOMES, addresses

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


def suite(name: str, target: str) -> tuple[str, ...]:
    """The problems of a suite, in order; `ProblemError` for an unknown name."""
    if name in ("demo", "recorded"):
        told = tuple(problem for problem in catalog_names() if target in recorded_targets(problem))
        return DEMO.get(target, told) if name == "demo" else told
    if name == "catalog":
        return catalog_names()
    if name == "seeds":
        return SEEDS
    if ":" in name or name in HOMES:
        return addresses(name)
    raise ProblemError(f"no suite {name!r}; there are: {', '.join(SUITES)}")
