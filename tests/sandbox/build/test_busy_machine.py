"""A first build where the judge has one core, another program computes on it, and nothing has been made before."""

import json
import os
import subprocess
import sys

import pytest

from kernelwright.sandbox.storage import VARIABLE
from tests.sandbox.conftest import SCALED_ROWS
from tests.support.commands import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOP = """
from torch.utils.cpp_extension import load_inline
SOURCE = '''
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x, torch::Tensor w) { return torch::cumsum(x * w, 1); }
'''
built = load_inline(name="scaled_rows", cpp_sources=SOURCE, functions=["scaled"])
"""
FORWARD = "torch.cumsum(x * self.weight, dim=1)"


def test_a_right_candidate_passes_on_a_busy_core_that_makes_the_header_meanwhile(tmp_path):
    (tmp_path / "problem.py").write_text(SCALED_ROWS.source)
    model = SCALED_ROWS.source.replace("Model(", "ModelNew(").replace(FORWARD, "built.scaled(x, self.weight)")
    (tmp_path / "candidate.py").write_text(TOP + model)
    temporary, core = tmp_path / "temporary", str(min(os.sched_getaffinity(0)))
    temporary.mkdir()
    words = ["judge", "problem.py", "candidate.py", "--effort", "screen", "--json"]
    command = ["taskset", "-c", core, sys.executable, "-P", "-m", "kernelwright", *words]
    environment = clean_environment(TMPDIR=str(temporary), **{VARIABLE: str(tmp_path / "cache")})
    busy = subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"])
    try:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    finally:
        busy.kill()
        busy.wait()
    found = json.loads(done.stdout)
    assert found["outcome"] == "passed" and found["seconds"]["headers"] > 0, found
    assert "load" in done.stderr
    assert all(path.suffix == ".turn" for path in temporary.rglob("*"))
