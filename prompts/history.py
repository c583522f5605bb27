"""Cutting the table of attempts to a token budget: the rows that tell this step most stay."""

from collections.abc import Sequence

from kernelwright.prompts.brief import PastAttempt
from kernelwright.prompts.prompt import estimated_tokens

RECENT = 3


def shortened(rows: Sequence[PastAttempt], tokens: int, first: Sequence[int] = ()) -> tuple[PastAttempt, ...]:
    """As many rows as fit into about `tokens`, in their own order.

    Those numbered in `first` go before all others, then the fastest, the latest few, what else passed, and the other
    failures, each the latest first. The budget is an estimate: see `estimated_tokens`.
    """
    left = tokens
    kept: set[int] = set()
    for row in sorted(rows, key=lambda row: _rank(row, rows, first)):
        left -= _tokens(row)
        if left < 0:
            break
        kept.add(row.number)
    return tuple(row for row in rows if row.number in kept)


def _rank(row: PastAttempt, rows: Sequence[PastAttempt], first: Sequence[int]) -> tuple[int, int]:
    fastest = max(rows, key=lambda one: 0.0 if one.doubt else one.speedup or 0.0)
    if row.number in first:
        return 0, list(first).index(row.number)
    if row is fastest and row.passed:
        return 1, 0
    if row.number > rows[-1].number - RECENT:
        return 2, -row.number
    return (3 if row.passed else 4), -row.number


def _tokens(row: PastAttempt) -> int:
    return estimated_tokens(
        f"| {row.number} | {row.role} | {row.idea} | {row.outcome} | 0.000 | 0.00x{row.doubt} | {row.detail} |"
    )
