"""The dtypes that a problem can be cast to, by the names that people give them."""

from kernelwright.problems.record.problem import Dtype, Problem, ProblemError

DTYPES: dict[str, Dtype] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
"""PyTorch's names, and the words of KernelBench's `precision`."""


def dtype_named(word: str) -> Dtype:
    """The dtype of that name; `ProblemError` for a word that is none."""
    if word not in DTYPES:
        raise ProblemError(f"no dtype {word!r}; there are: {', '.join(DTYPES)}")
    return DTYPES[word]


def cast(problem: Problem, dtype: str | None) -> Problem:
    """The problem with its weights and floating inputs in this dtype; None leaves them as the source makes them."""
    return problem if dtype is None else problem.model_copy(update={"dtype": dtype_named(dtype)})
