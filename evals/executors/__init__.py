"""Where judging runs: stages handed to build pools and devices, of this machine or of a Ray cluster.

An `Executor` runs single stages (`protocol.py`); the `Dispatcher` decides what runs where and hands out again what a
lost worker had not finished. `Worker` is what runs beside a device, the same on every executor. No process named here
ever runs a candidate: each is a judge, and candidates run in its jailed children.
"""

from evals.executors.choosing import Choice, evaluating, executor_for
from evals.executors.dispatch import Dispatcher, Tally
from evals.executors.protocol import Answer, Device, Executor, ExecutorError, Lost, Product, Stage, Unjudged, Work

__all__ = [
    "Answer",
    "Choice",
    "Device",
    "Dispatcher",
    "Executor",
    "ExecutorError",
    "Lost",
    "Product",
    "Stage",
    "Tally",
    "Unjudged",
    "Work",
    "evaluating",
    "executor_for",
]
