"""Problems: the `Problem` record, reading one from a name or a path, and the catalog that ships.

A problem is a reference program in the KernelBench convention: `class Model`, `get_inputs()`, `get_init_inputs()`.
This package reads and checks text; it never runs a reference (that is the sandbox's work) and imports nothing of ours.
"""

from kernelwright.problems.input_distributions import DISTRIBUTIONS as INPUT_DISTRIBUTIONS
from kernelwright.problems.loading import catalog_names, load_problem, problem_of_text
from kernelwright.problems.problem import ExcludedValues, LibraryMissing, Problem, ProblemError, Tolerance
from kernelwright.problems.source import lint_source

__all__ = [
    "INPUT_DISTRIBUTIONS",
    "ExcludedValues",
    "LibraryMissing",
    "Problem",
    "ProblemError",
    "Tolerance",
    "catalog_names",
    "lint_source",
    "load_problem",
    "problem_of_text",
]
