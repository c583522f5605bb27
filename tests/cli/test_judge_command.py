import json
import os
import pty
import re
import subprocess
import sys

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from tests.contract import recorded
from tests.support.commands import run_with
from tests.support.problems import CUDA, PROBLEM, RIGHT

pytestmark = pytest.mark.slow
KEYS = {path for path in recorded.read("json_keys")["judge PASSED"] if path.isidentifier()}
QUICK = ("--effort", "screen")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    (folder / "problem.py").write_text(PROBLEM)
    (folder / "right.py").write_text(RIGHT)
    return run_with(folder, "judge", "problem.py", "right.py", "--json")


def test_a_right_candidate_ends_with_0_and_one_json_object_with_the_keys_of_the_contract(done):
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"], set(found)) == (0, "passed", KEYS)
    assert found["speedup_low"] <= found["speedup"] <= found["speedup_high"]
    assert found["versions"]["judge_version"] == str(JUDGE_VERSION), "by which code it was decided"
    assert len(found["samples"][0]["candidate_ms"]) == len(found["samples"][0]["baseline_ms"]) >= 8


def test_a_record_is_recomputed_from_its_own_samples(kernelwright, files, done):
    (files / "record.json").write_text(done.stdout)
    agrees = kernelwright("judge", "--recheck", "record.json")
    assert (agrees.returncode, "agrees" in agrees.stdout) == (0, True)


@pytest.mark.long
def test_gradients_are_judged_when_asked_for(kernelwright, files):
    source = (files / "right.py").read_text()
    (files / "cut.py").write_text(
        source.replace("def forward(self, x):", "def forward(self, x):\n        x = x.detach()")
    )
    assert kernelwright("judge", "problem.py", "right.py", "--backward", *QUICK).returncode == 0
    done = kernelwright("judge", "problem.py", "cut.py", "--backward")
    assert (done.returncode, "does not require grad" in done.stdout) == (1, True)


def test_a_wrong_candidate_ends_with_1_and_names_stage_and_pattern(kernelwright, files):
    done = kernelwright("judge", "problem.py", "wrong.py")
    assert done.returncode == 1
    assert done.stdout.startswith("failed at check: ")


def test_a_models_whole_reply_is_judged_by_the_source_in_it(kernelwright, files):
    reply = f"<think>A fence first.</think>\n\nIt adds up.\n\n```python\n{(files / 'wrong.py').read_text()}```\n\nDone."
    (files / "reply.md").write_text(reply)
    done = kernelwright("judge", "problem.py", "reply.md", *QUICK)
    assert done.returncode == 1
    assert done.stdout.startswith("failed at check: ")
    assert "reply.md" in done.stderr


def test_files_from_anywhere_are_judged(kernelwright, files, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("with a space")
    (elsewhere / "level1_7_Sum.py").write_text(PROBLEM)
    (elsewhere / "right.py").write_text(RIGHT, encoding="utf-8-sig")  # as some editors do
    assert kernelwright("judge", elsewhere / "level1_7_Sum.py", elsewhere / "right.py", *QUICK).returncode == 0


def test_streams_that_are_closed_change_no_verdict_and_a_full_one_is_told(files):
    command = f"{sys.executable} -P -m kernelwright"
    closed = f"{command} judge problem.py right.py --effort screen <&- >&- 2>&-"
    assert subprocess.run(closed, shell=True, cwd=files, check=False).returncode == 0
    full = subprocess.run(f"{command} problems list > /dev/full", shell=True, stderr=subprocess.PIPE, check=False)
    assert (full.returncode, b"no space left" in full.stderr) == (3, True)


def test_the_jail_can_be_switched_off_and_the_record_says_so(kernelwright, files):
    done = kernelwright("judge", "problem.py", "right.py", "--jail", "off", "--json", *QUICK)
    assert "JAIL OFF by request" in json.loads(done.stdout)["jail"]


def test_a_folder_of_a_problem_is_named_as_it_lies_there(kernelwright, files):
    (files / "fold").mkdir()
    (files / "fold" / "problem.toml").write_text('family = "toy"\ntitle = "Sums"\n[sizes.cpu]\n')
    (files / "fold" / "reference.py").write_text(PROBLEM)
    (files / "null.py").write_text("x = '\0'\n")
    done = kernelwright("judge", "fold", "null.py", *QUICK)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("failed at scan: line 1: ") and "x = '\\x00'\n" in done.stdout


def test_a_gpu_candidate_on_a_machine_without_a_gpu_ends_with_3(kernelwright, files):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (files / "cuda.py").write_text(CUDA)
    done = kernelwright("judge", "problem.py", "cuda.py")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "CUDA device" in done.stderr


def test_a_machine_without_a_compiler_is_told_how_to_get_one(kernelwright, files):
    (files / "cpp.py").write_text(CUDA.replace(", cuda_sources='__global__ void f() {}'", ""))
    done = kernelwright("judge", "problem.py", "cpp.py", CXX="no-such-compiler")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "apt-get install g++" in done.stderr


MISTAKEN_CONVOLUTIONS = {
    "check": (
        """
import ctypes, torch, torch.nn as nn
from torch.utils.cpp_extension import load_inline
SOURCE = r'''
extern "C" void run(const float* x, const float* w, float* y, const long* s) {
    long N = s[0], CI = s[1], H = s[2], W = s[3], CO = s[4];
    long K = s[5], ST = s[6], P = s[7], D = s[8], OH = s[9], OW = s[10];
    #pragma omp parallel for collapse(2)
    for (long n = 0; n < N; ++n) for (long o = 0; o < CO; ++o)
        for (long a = 0; a < OH; ++a) for (long b = 0; b < OW; ++b) {
            float sum = 0;
            for (long c = 0; c < CI; ++c) for (long p = 0; p < K; ++p) for (long q = 0; q < K; ++q) {
                long h = (a + P - p * D) / ST, v = (b + P - q * D) / ST;
                if (h < 0 || h >= H || v < 0 || v >= W) continue;
                sum += x[((n * CI + c) * H + h) * W + v] * w[((c * CO + o) * K + p) * K + q];
            }
            y[((n * CO + o) * OH + a) * OW + b] = sum;
        }
}'''
RUN = ctypes.CDLL(load_inline(name="ct", cpp_sources=[SOURCE], extra_cflags=["-O2", "-fopenmp"],
    extra_ldflags=["-fopenmp"], no_implicit_headers=True, is_python_module=False)).run
class ModelNew(nn.Module):
    def __init__(self, ci, co, k, stride, padding, dilation):
        super().__init__()
        self.conv = nn.ConvTranspose2d(ci, co, k, stride, padding, dilation=dilation, bias=False)
    def forward(self, x):
        c, w = self.conv, self.conv.weight
        (n, ci, h, v), k, st, p, d = x.shape, w.shape[2], c.stride[0], c.padding[0], c.dilation[0]
        oh, ow = ((m - 1) * st - 2 * p + d * (k - 1) + 1 for m in (h, v))
        y = torch.empty(n, w.shape[1], oh, ow)
        sizes = (ctypes.c_long * 11)(n, ci, h, v, w.shape[1], k, st, p, d, oh, ow)
        RUN(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(w.data_ptr()), ctypes.c_void_p(y.data_ptr()), sizes)
        return y
""",
        "the output is wrong",
    ),
    "build": (
        """
import torch, torch.nn as nn
from torch.utils.cpp_extension import load_inline
SOURCE = 'extern "C" int f() { return forward_cuda(1); }'
load_inline(name="nd", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
class ModelNew(nn.Module):
    def forward(self, x): return x
""",
        "forward_cuda",
    ),
}


@pytest.mark.parametrize("stage", MISTAKEN_CONVOLUTIONS)
def test_the_mistakes_of_real_answers_fail_at_their_stage(kernelwright, tmp_path, stage):
    source, words = MISTAKEN_CONVOLUTIONS[stage]
    (tmp_path / "candidate.py").write_text(source)
    large = load_problem("conv_transpose2d_strided_dilated").source
    (tmp_path / "convolution.py").write_text(re.sub(r"^(HEIGHT|WIDTH) = \d+", r"\1 = 6", large, flags=re.M))
    done = kernelwright("judge", "convolution.py", "candidate.py", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["stage"]) == (1, stage), found["reason"]
    assert words in found["reason"]


def test_a_terminal_is_shown_the_stage_and_nothing_else_is(files):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "kernelwright", "judge", "problem.py", "right.py", "--effort", "screen"]
    done = subprocess.run(command, cwd=files, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=300, check=True)
    os.close(theirs)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    stages = [one.partition(" ...\r")[0] for one in shown.split("\x1b[K")[1:]]
    assert stages[0] == "set-up" and stages[-1] == "" and {"build", "load", "run", "time"} < set(stages)
    assert done.stdout.startswith("passed") and "\x1b" not in done.stdout
