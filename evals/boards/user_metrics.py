"""Metrics of a user's own: functions in files of theirs, each a column of the boards."""

from collections.abc import Callable, Mapping, Sequence

from kernelwright.agent.strategies.plugins import function_in
from kernelwright.evals.boards.cells import Cell
from kernelwright.evals.boards.leaderboard import Board, Row

Metric = Callable[[Sequence[Cell]], float | None]
"""Of an entrant's cells for the problems that are ranked; None where it has no value."""


class MetricError(Exception):
    """No such metric, or one that breaks the rules; the message is one sentence."""


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The metrics that `path/to/file.py:function` names, by the function's name; `MetricError` where there is none."""
    found: dict[str, Metric] = {}
    for name in names:
        path, colon, function = name.rpartition(":")
        if not colon or not path:
            raise MetricError(f"no metric {name!r}; give it as path/to/file.py:function")
        if function in found:
            raise MetricError(f"two metrics are named {function!r}; rename one of them")
        found[function] = function_in(name, "metric", MetricError, "(cells)")
    return found


def with_metrics(boards: Sequence[Board], metrics: Mapping[str, Metric]) -> list[Board]:
    """The boards with a further column for each metric. Raises `MetricError` where one fails or gives no number."""
    return [
        board.model_copy(update={"rows": tuple(_with(row, board, metrics) for row in board.rows)}) for board in boards
    ]


def _with(row: Row, board: Board, metrics: Mapping[str, Metric]) -> Row:
    own = {name: _value(name, metric, board.ranked(row)) for name, metric in metrics.items()}
    return row.model_copy(update={"own": own})


def _value(name: str, metric: Metric, cells: Sequence[Cell]) -> float | None:
    try:
        value = metric(cells)
        return None if value is None else float(value)
    except Exception as fault:
        raise MetricError(f"metric {name!r} failed ({type(fault).__name__}: {fault}); correct it") from fault
