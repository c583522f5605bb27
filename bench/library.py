"""Judging from Python: 200 pairs of a trivial problem, one in flight against eight; ms a verdict.

Timing is one at a time in both, so the gain is what building and starting children side by side saves.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from bench.comparison import Comparison
from kernelwright.sandbox.pool.judge_pool import JudgePool
from kernelwright.sandbox.verdict.settings import Settings

PROBLEM = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)

def get_inputs():
    return [torch.randn(8, 32)]

def get_init_inputs():
    return []
"""
PAIRS, ROUNDS, MANY = 200, 10, 8
QUICK = Settings(threads=1, min_pairs=4, max_pairs=4, worker_pairs=1, warm_up=1, time_budget_s=0.1)


def run() -> Comparison:
    """In turn: a tenth of the pairs one after the other, a tenth eight at a time."""
    return asyncio.run(_measured())


async def _measured() -> Comparison:
    share = PAIRS // ROUNDS
    single: list[float] = []
    several: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.py"
        path.write_text(PROBLEM)
        async with JudgePool(1, QUICK) as one, JudgePool(MANY, QUICK) as many:
            await one.judge(str(path), _candidate(-1))
            await many.judge(str(path), _candidate(-1))
            for turn in range(ROUNDS):
                pairs = [(str(path), _candidate(turn * share + number)) for number in range(share)]
                single.append(await _ms_each(one, pairs))
                several.append(await _ms_each(many, pairs))
    print(f"  {PAIRS} pairs each way, {60_000 / (sum(several) / ROUNDS):.0f} verdicts a minute with {MANY} in flight")
    return Comparison(("one in flight", f"{MANY} in flight"), tuple(single), tuple(several), None)


async def _ms_each(judging: JudgePool, pairs: list[tuple[str, str]]) -> float:
    start = time.perf_counter()
    results = [result async for result in judging.judge_many(list(pairs))]
    if not all(result.passed for result in results):
        raise RuntimeError(next(str(result) for result in results if not result.passed))
    return (time.perf_counter() - start) * 1e3 / len(pairs)


def _candidate(number: int) -> str:
    return PROBLEM.replace("class Model(", f"NUMBER = {number}\n\nclass ModelNew(")
