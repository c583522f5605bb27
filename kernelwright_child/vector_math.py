"""torch's vector functions, met before a child has several threads.

The library behind them sets itself up in their first use. Where that use was a child's first parallel operation, one
thread's part of it came out less exact than every later time (seen of `tanh`: the first half of the rows off by 1e-5).
"""

import torch

FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p",
    "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
FEW = 64
"""Elements that no operator shares among threads."""


def meet() -> None:
    """Call each function once on this thread: 14 ms the first time in a process and its forks, 0.2 after that."""
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            values = torch.full((FEW,), 0.5, dtype=dtype)
            for name in FUNCTIONS:
                getattr(torch, name)(values)
