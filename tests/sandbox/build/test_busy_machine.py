"""A first build where the judge has one core, another program computes on it, and nothing has been made before."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from kernelwright.sandbox.machine.cache import VARIABLE
from tests.sandbox.conftest import SCALED_ROWS
from tests.support.commands import clean_environment

pytestmark = pytest.mark.slow

CANDIDATE = """
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = r'''
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x, torch::Tensor w) {
    auto y = torch::empty_like(x);
    for (long r = 0; r < x.size(0); ++r) {
        float sum = 0;
        for (long c = 0; c < x.size(1); ++c) {
            sum += x.data_ptr<float>()[r * x.size(1) + c] * w.data_ptr<float>()[c];
            y.data_ptr<float>()[r * x.size(1) + c] = sum;
        }
    }
    return y;
}
'''
built = load_inline(name="scaled_rows", cpp_sources=SOURCE, functions=["scaled"])

class ModelNew(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return built.scaled(x, self.weight)
"""


@contextmanager
def busy(core):
    process = subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def judged(folder):
    """The verdict on one core, and the names of all that the judge and its compilers have left."""
    temporary, core = folder / "temporary", str(min(os.sched_getaffinity(0)))
    temporary.mkdir()
    (folder / "problem.py").write_text(SCALED_ROWS.source)
    (folder / "candidate.py").write_text(CANDIDATE)
    command = [*("taskset", "-c", core, sys.executable, "-P", "-m", "kernelwright", "judge"), "problem.py"]
    environment = clean_environment(TMPDIR=str(temporary), **{VARIABLE: str(folder / "cache")})
    with busy(core):
        words = [*command, "candidate.py", "--effort", "screen", "--json"]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout), {path.name for path in temporary.rglob("*") if not path.name.endswith(".turn")}


def test_a_right_candidate_passes_on_a_busy_core_that_makes_the_header_meanwhile(tmp_path):
    right, left = judged(tmp_path)
    assert right["outcome"] == "passed" and right["seconds"]["headers"] > 0, right
    assert left == set()
