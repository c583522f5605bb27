"""Small real work for executors: quick settings, a problem, and candidates that pass, fail and do not build."""

import asyncio

from kernelwright.sandbox.pool.dispatcher import Dispatcher
from kernelwright.sandbox.pool.executor import Work, device_at, split
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from tests.support.problems import PROBLEM, RIGHT, WRONG, tiny_problem

QUICK = JudgeSettings(
    min_pairs=4, max_pairs=4, worker_pairs=1, warm_up=1, time_budget_s=0.1, without=("placebo",), threads=1
)
SUM = tiny_problem(PROBLEM, name="cumsum", title="Running sum", family="scan")
NEGATED = tiny_problem(PROBLEM.replace("torch.cumsum(x, dim=1)", "-x"), name="negated", title="Negated", family="map")
NOT_PYTHON = "class ModelNew(:\n"
COMPILED = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor negated(torch::Tensor x) { return -x; }
"""
built = load_inline(name="negated", cpp_sources=SOURCE, functions=["negated"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return built.negated(x)
'''
HIDDEN = """
import os
import sys
import torch

seen = [name for name in os.environ if "RAY" in name or "TOKEN" in name]
seen += [name for name in sys.modules if name == "ray" or name.startswith("evals")]


class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError(f"seen: {seen}, parent {os.getppid()}")
"""


def right(number=0, problem=SUM):
    """A right candidate, unlike those of other numbers."""
    source = problem.source.replace("class Model(", "class ModelNew(")
    return Work(problem=problem, candidate=Candidate(source=f"{source}\n# {number}\n"))


def wrong(number=0):
    return Work(problem=SUM, candidate=Candidate(source=f"{WRONG}\n# {number}\n"))


def batch():
    return [
        right(1),
        wrong(1),
        Work(problem=SUM, candidate=Candidate(source=NOT_PYTHON)),
        right(2, NEGATED),
        Work(problem=NEGATED, candidate=Candidate(source=RIGHT)),
        Work(problem=NEGATED, candidate=Candidate(source=HIDDEN)),
    ]


def declared(kinds, cores):
    """Fake devices: equal parts of these cores, with these kinds."""
    parts = split(tuple(cores), len(kinds))
    placed = enumerate(zip(kinds, parts, strict=True))
    return [device_at(ordinal, kind, QUICK, part) for ordinal, (kind, part) in placed]


def outcome(verdict):
    """What two executors must agree on: inputs are drawn anew, so the sizes of errors differ."""
    return "passed" if isinstance(verdict, Passed) else (verdict.stage, verdict.reason.partition(":")[0])


async def judged(executor, works, kind=None, during=None):
    """All outcomes in the order of the work, and the dispatcher's tally; `during` runs beside."""
    async with Dispatcher(executor, kind) as dispatcher:
        tasks = [asyncio.create_task(dispatcher.judge(work)) for work in works]
        beside = asyncio.create_task(during(dispatcher)) if during else None
        found = await asyncio.gather(*tasks)
        if beside is not None:
            await beside
        return found, dispatcher.tally
