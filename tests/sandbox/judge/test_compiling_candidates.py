"""Candidates that compile in their first call, as torch.compile does, and those that leave processes behind."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK, SCALED_ROWS

pytestmark = pytest.mark.slow

LIMIT_S = 3.0
COMPILED = """
import torch
import torch._inductor.async_compile as pool
{top}

@torch.compile
def scaled(x, weight):
    pool.AsyncCompile.warm_pool()  # as torch does itself where Triton is installed
    return torch.cumsum(x * weight, dim=1)

class ModelNew(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return scaled(x, self.weight)
"""
BY_HAND = """
import os, subprocess, torch
WORK = ("constexpr long f() {{ long n = 0; while (n < 3000000) ++n; return n; }} constexpr long x = f();")
COMPILER = ["g++", "-x", "c++", "-std=c++17", "-fconstexpr-ops-limit=9223372036854775807",
            "-fconstexpr-loop-limit=2147483647", "-fsyntax-only", "-"]

class ModelNew(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(columns))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        while self.calls == {call} and os.times().children_user < {seconds}:
            subprocess.run(COMPILER, input=WORK.encode(), check=True)
        return torch.cumsum(x * self.weight, dim=1)
"""


@pytest.fixture(scope="module")
def judge():
    with Judge(
        SCALED_ROWS,
        QUICK.model_copy(update={"call_timeout_s": LIMIT_S, "worker_pairs": 2, "min_pairs": 8, "max_pairs": 8}),
    ) as judge:
        yield judge


def test_a_compiled_forward_passes_in_the_strict_jail():
    with Judge(SCALED_ROWS, QUICK.model_copy(update={"jail": "strict", "call_timeout_s": 30.0})) as judge:
        verdict = judge.judge(Candidate(source=COMPILED.format(top="")))
    assert isinstance(verdict, Passed), verdict


def test_a_pool_of_compiling_processes_that_it_starts_itself_is_refused():
    with Judge(SCALED_ROWS, QUICK.model_copy(update={"call_timeout_s": 30.0})) as judge:
        verdict = judge.judge(Candidate(source=COMPILED.format(top="pool.config.compile_threads = 2")))
    assert isinstance(verdict, Failed) and verdict.stage == "run" and "processes of its own" in verdict.reason, verdict


def test_compilers_in_the_first_call_of_each_worker_have_the_time_of_a_build(judge):
    verdict = judge.judge(Candidate(source=BY_HAND.format(call=1, seconds=3 * LIMIT_S)))
    assert isinstance(verdict, Passed), verdict


def test_compilers_in_a_later_call_have_no_more_time_than_any_other(judge):
    verdict = judge.judge(Candidate(source=BY_HAND.format(call=2, seconds=3 * LIMIT_S)))
    assert isinstance(verdict, Failed) and "no answer" in verdict.reason, verdict
