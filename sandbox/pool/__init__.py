"""Where judging runs: stages handed to build pools and devices, of this machine or of a Ray cluster.

An `Executor` runs single stages (`protocol.py`); the `Dispatcher` decides what runs where and hands out again what a
lost worker had not finished. `Worker` is what runs beside a device, the same on every executor. No process named here
ever runs a candidate: each is a judge, and candidates run in its jailed children.
"""

from kernelwright.sandbox.pool.dispatch import Dispatcher, Tally
from kernelwright.sandbox.pool.executor_choice import ExecutorChoice, executor_for
from kernelwright.sandbox.pool.protocol import (
    Answer,
    Device,
    Executor,
    ExecutorError,
    Lost,
    Product,
    Stage,
    Unjudged,
    Work,
)

__all__ = [
    "Answer",
    "Device",
    "Dispatcher",
    "Executor",
    "ExecutorChoice",
    "ExecutorError",
    "Lost",
    "Product",
    "Stage",
    "Tally",
    "Unjudged",
    "Work",
    "executor_for",
]
