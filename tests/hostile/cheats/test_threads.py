"""Fewer threads than cores bind a candidate as they bind its baseline."""

import os

import pytest

from kernelwright.problems import Problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.hostile.cheats.problems import CORPUS
from tests.support.efforts import at_asked_effort

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all that a candidate can take"),
]
PROBLEM = Problem(
    name="chain",
    title="Sines",
    family="test",
    size="cpu",
    source="""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(10):
            x = torch.sin(x)
        return x

def get_inputs():
    return [torch.randn(1024, 1024)]

def get_init_inputs():
    return []
""",
)
CHAIN = """
import os, threading, torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
FORWARD
        for _ in range(10):
            x = torch.sin(x)
        return x
"""
IN_THREADS_OF_ITS_OWN = """
        y, together = torch.empty_like(x), threading.Barrier(2)

        def part(rows):
            {widen}
            together.wait()
            for _ in range(4):
                z = x[rows]
                for _ in range(10):
                    z = torch.sin(z)
            y[rows] = z

        both = [threading.Thread(target=part, args=(rows,)) for rows in (slice(0, 512), slice(512, 1024))]
        [one.start() for one in both]
        [one.join() for one in both]
        return y
"""
"""Four times the work, so that what the judge itself waits for on a busy machine hides nothing."""
WIDEN = "os.sched_setaffinity(0, range(os.cpu_count()))"
TAKES_MORE = CHAIN.replace("FORWARD", IN_THREADS_OF_ITS_OWN.replace("{widen}", WIDEN))
APART = "os.sched_setaffinity(0, {0 if rows.start == 0 else os.cpu_count() - 1})"
AT_ONCE = "if os.geteuid() == 0: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
TAKES_MORE_AT_ONCE = CHAIN.replace(
    "FORWARD", IN_THREADS_OF_ITS_OWN.replace("{widen}", f"{APART}\n            {AT_ONCE}")
)
"""Without a jail around it, root's candidate waits for no other program."""
OPENMP = """
import ctypes, torch
from torch.utils.cpp_extension import load_inline

SOURCE = r'''
#include <cmath>
#include <cstdlib>
#include <omp.h>
extern "C" void run(const float* x, float* y, long n) {
    #pragma omp parallel for WISH
    for (long i = 0; i < n; ++i) {
        float v = x[i];
        for (int k = 0; k < 5; ++k) v = sinf(v);
        y[i] = v;
    }
}
'''
PATH = load_inline(name="sines", cpp_sources=[SOURCE], extra_cflags=["-O2", "-fopenmp"], extra_ldflags=["-fopenmp"],
                   no_implicit_headers=True, is_python_module=False)
RUN = ctypes.CDLL(PATH).run
RUN.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]

class ModelNew(torch.nn.Module):
    def forward(self, x):
        for _ in range(5):
            x = torch.sin(x)  # torch's own threads still wait for more while those of another OpenMP library begin
        y = torch.empty_like(x)
        RUN(x.data_ptr(), y.data_ptr(), x.numel())
        return y
"""
HONEST = {
    "OpenMP beside torch's": OPENMP.replace("WISH", ""),
    "OpenMP that asks for eight threads": OPENMP.replace("WISH", "num_threads(8)"),
    "eight threads of torch's": CHAIN.replace("FORWARD", "        torch.set_num_threads(8)"),
    "torch's threads on all cores": CHAIN.replace("FORWARD", f"        {WIDEN}; torch.set_num_threads(2)"),
    "threads of its own": CHAIN.replace("FORWARD", IN_THREADS_OF_ITS_OWN.replace("{widen}", "pass")),
}
"""The fourth finds no core that torch's OpenMP would take beside the first."""


TRIES = 8
"""On a busy machine its threads may never run side by side, and then it gains nothing."""


def stays_within(measured, threads):
    """Whether no call took more processor time than so many threads can."""
    used = zip(measured.candidate_cpu_ms, measured.pairings[0].candidate_ms, strict=True)
    return all(cpu_ms <= threads * ms for cpu_ms, ms in used)


def judged(source, **settings):
    with Judge(PROBLEM, at_asked_effort(CORPUS.model_copy(update=settings))) as judge:
        return judge.judge(Candidate(source=source))


def test_a_candidate_with_one_thread_can_not_take_more_cores():
    verdict = judged(TAKES_MORE, threads=1)
    assert isinstance(verdict, Passed), verdict
    assert stays_within(verdict.measurement, 1)


def test_a_candidate_that_takes_more_cores_than_it_has_threads_is_refused():
    tried = (judged(TAKES_MORE_AT_ONCE, threads=1, jail="off") for _ in range(TRIES))
    verdict = next(verdict for verdict in tried if isinstance(verdict, Failed))
    assert verdict.stage in ("run", "time"), verdict
    assert "--threads 1" in verdict.reason


def test_without_the_bound_nobody_sees_that_it_does():
    tried = (judged(TAKES_MORE_AT_ONCE, threads=1, jail="off", without=("threads",)) for _ in range(TRIES))
    assert not all(stays_within(verdict.measurement, 1) for verdict in tried)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("habit", HONEST)
def test_a_candidate_that_stays_on_its_cores_passes(habit, threads):
    verdict = judged(HONEST[habit], threads=threads)
    assert isinstance(verdict, Passed), verdict
    assert stays_within(verdict.measurement, threads)
