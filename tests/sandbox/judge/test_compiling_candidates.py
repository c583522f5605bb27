"""Candidates that compile in their first call, as torch.compile does, and those that leave processes behind."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK, SCALED_ROWS

pytestmark = pytest.mark.slow

LIMIT_S = 3.0
TOP = "import os, subprocess, torch\nimport torch._inductor.async_compile as pool\n"
FORWARD, CALL = "return torch.cumsum(x * self.weight, dim=1)", "return scaled(x, self.weight)"
COMPILED = """
@torch.compile
def scaled(x, weight):
    pool.AsyncCompile.warm_pool()  # as torch does itself where Triton is installed
    return torch.cumsum(x * weight, dim=1)
"""
WITH_A_POOL = COMPILED + "pool.config.compile_threads = 2"
BY_HAND = """
WORK = b"constexpr long f() { long n = 0; while (n < 3000000) ++n; return n; } constexpr long x = f();"
COMPILER = ["g++", "-x", "c++", "-std=c++17", "-fconstexpr-ops-limit=9223372036854775807",
            "-fconstexpr-loop-limit=2147483647", "-fsyntax-only", "-"]
def scaled(x, weight):
    return torch.cumsum(x * weight, dim=1)
calls = 0
"""
COMPILES = """global calls
        calls += 1
        while calls == {} and os.times().children_user < {}: subprocess.run(COMPILER, input=WORK, check=True)
        """


def verdict_on(top, before="", **settings):
    model = SCALED_ROWS.source.replace("Model(", "ModelNew(").replace(FORWARD, before + CALL)
    with Judge(SCALED_ROWS, QUICK.model_copy(update=settings)) as judge:
        return judge.judge(Candidate(source=TOP + top + model))


@pytest.mark.parametrize(
    ("top", "jail", "words"),
    [(COMPILED, "strict", ""), pytest.param(WITH_A_POOL, "auto", "processes of its own", marks=pytest.mark.long)],
)
def test_a_compiled_forward_passes_and_not_with_a_pool_of_its_own(top, jail, words):
    verdict = verdict_on(top, jail=jail, call_timeout_s=30.0)
    assert isinstance(verdict, Failed if words else Passed) and words in getattr(verdict, "reason", ""), verdict


@pytest.mark.long
@pytest.mark.parametrize(("call", "wanted"), [(1, Passed), (2, Failed)])
def test_compilers_have_the_time_of_a_build_in_the_first_call_of_each_worker_alone(call, wanted):
    before = COMPILES.format(call, 3 * LIMIT_S)
    verdict = verdict_on(BY_HAND, before, call_timeout_s=LIMIT_S, worker_pairs=2, min_pairs=8, max_pairs=8)
    assert isinstance(verdict, wanted) and (wanted is Passed or "no answer" in verdict.reason), verdict
