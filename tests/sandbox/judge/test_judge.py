import os
import re
import textwrap
import time
from pathlib import Path

import pytest

from kernelwright.problems import Problem
from kernelwright.sandbox.judge.judging import Judge, judge
from kernelwright.sandbox.verdict.errors import BrokenProblem
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK

pytestmark = pytest.mark.slow

MODEL = """
import ctypes, os, signal, sys, threading, time
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

{top}

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(columns))
        self.calls = 0
        self.kept = {{}}
{constructor}

    def forward(self, x):
{forward}
"""


def candidate(forward, constructor="", top=""):
    def indented(text):
        return textwrap.indent(textwrap.dedent(text).strip() or "pass", 8 * " ")

    return Candidate(
        source=MODEL.format(top=textwrap.dedent(top), constructor=indented(constructor), forward=indented(forward))
    )


RIGHT = "return torch.cumsum(x * self.weight, dim=1)"


def failed(judge, found, stage):
    verdict = judge.judge(found)
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage == stage, verdict
    return verdict


def test_a_right_candidate_passes_with_every_sample(scaled_rows):
    verdict = scaled_rows.judge(candidate(RIGHT))
    assert isinstance(verdict, Passed), verdict
    assert len(verdict.measurement.closest.candidate_ms) == scaled_rows.settings.min_pairs


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        ("return torch.cumsum(x * self.weight, dim=1) + 1", "the same result"),
        ("return torch.cumsum(x * self.weight, dim=1) + torch.rand_like(x)", "another result"),
    ],
)
def test_of_a_wrong_result_it_is_said_whether_it_repeats(scaled_rows, forward, found):
    assert found in failed(scaled_rows, candidate(forward), "check").log


def test_a_kernel_of_its_own_is_built_and_passes(scaled_rows):
    top = '''
    SOURCE = r"""
    extern "C" void run(const float* x, const float* w, float* y, long rows, long n) {
        for (long r = 0; r < rows; ++r) {
            float sum = 0;
            for (long c = 0; c < n; ++c) y[r * n + c] = sum += x[r * n + c] * w[c];
        }
    }"""
    PATH = load_inline(name="own", cpp_sources=[SOURCE], extra_cflags=["-O2"], no_implicit_headers=True,
                       is_python_module=False)
    RUN = ctypes.CDLL(PATH).run
    RUN.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
    '''
    forward = """
    y = torch.empty_like(x)
    RUN(x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
    return y
    """
    verdict = scaled_rows.judge(candidate(forward, top=top))
    assert isinstance(verdict, Passed), verdict
    assert verdict.evidence.authenticity.label == "custom"


PASSING = {
    "weights under another name, handed over by order": RIGHT.replace("weight", "scale"),
    "a result that is not contiguous": (
        "y = torch.empty(x.shape[1], x.shape[0]).t(); y.copy_(torch.cumsum(x * self.weight, dim=1)); return y"
    ),
    "a negation that torch has only noted": ("y = torch.cumsum(x * self.weight, dim=1)\nreturn torch._neg_view(-y)"),
    "a conjugation that torch has only noted": (
        "y = torch.cumsum(x * self.weight, dim=1)\nreturn torch.complex(torch.zeros_like(y), -y).conj().imag"
    ),
    "noise on standard output": f"print('x' * 100000); os.write(2, b'y' * 100000); {RIGHT}",
    "a look for a key in the environment": f"assert 'OPENAI_API_KEY' not in os.environ\n{RIGHT}",
}


@pytest.mark.parametrize("name", PASSING)
def test_a_right_result_passes_however_it_is_made(scaled_rows, monkeypatch, name):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    source = candidate(PASSING[name]).source
    if "self.scale" in source:
        source = source.replace("self.weight", "self.scale")
    assert isinstance(scaled_rows.judge(Candidate(source=source)), Passed)


def test_a_syntax_error_fails_at_scan(scaled_rows):
    assert "line 2" in failed(scaled_rows, Candidate(source="import torch\nclass ModelNew(:\n"), "scan").reason


def test_a_source_without_the_class_fails_at_scan(scaled_rows):
    verdict = failed(scaled_rows, Candidate(source="import torch\nclass Model: pass\n"), "scan")
    assert "no class ModelNew" in verdict.reason and verdict.reason.endswith(" Model")


def test_an_undeclared_function_fails_at_build_with_the_compilers_line(scaled_rows):
    top = """load_inline(name="undeclared", cpp_sources=["void f() { g(); }"], no_implicit_headers=True,
    is_python_module=False)"""
    verdict = failed(scaled_rows, candidate(RIGHT, top=top), "build")
    assert re.search(r"error: .g. was not declared", verdict.reason)
    assert "void f() { g(); }" in verdict.log


def test_an_exception_in_the_constructor_fails_at_load(scaled_rows):
    found = candidate(RIGHT, constructor="raise KeyError('size')")
    assert "KeyError: 'size'" in failed(scaled_rows, found, "load").reason


def test_weights_that_neither_fit_nor_are_drawn_alike_fail_at_the_check(scaled_rows):
    failed(scaled_rows, candidate(RIGHT, constructor="self.extra = nn.Parameter(torch.zeros(3))"), "check")


def test_an_exception_in_forward_fails_at_run_with_its_own_line(scaled_rows):
    verdict = failed(scaled_rows, candidate("return torch.cumsum(x * None, dim=1)"), "run")
    assert verdict.reason.startswith("TypeError")
    assert "cumsum(x * None, dim=1)" in verdict.log
    assert "worker.py" not in verdict.log


WRONG = {
    "zeros": ("return torch.zeros_like(x)", "all elements are zero"),
    "a wrong index": (
        "y = torch.cumsum(x * self.weight, dim=1); y[:, -1] = y[:, -2]; return y",
        "index 47 (the last) of axis 1",
    ),
    "another dtype": ("return torch.cumsum(x * self.weight, dim=1).double()", "dtype float64"),
    "half precision inside": ("return torch.cumsum(x.bfloat16() * self.weight.bfloat16(), dim=1).float()", "wrong"),
    "a missing row": ("return torch.cumsum(x * self.weight, dim=1)[:-1]", "shape [31, 48]"),
    "a tuple": ("return (torch.cumsum(x * self.weight, dim=1),)", "structure"),
    "weights ignored": ("return torch.cumsum(x, dim=1)", "wrong"),
    "uninitialised memory": ("return torch.empty_like(x)", ""),
    "right twice, then stale": (
        """
        self.calls += 1
        if self.calls <= 2:
            self.last = torch.cumsum(x * self.weight, dim=1)
        return self.last
        """,
        "wrong",
    ),
    "a cache by pointer": (
        """
        if x.data_ptr() not in self.kept:
            self.kept[x.data_ptr()] = torch.cumsum(x * self.weight, dim=1)
        return self.kept[x.data_ptr()]
        """,
        "wrong",
    ),
    "a cache by shape": ("return self.kept.setdefault(x.shape, torch.cumsum(x * self.weight, dim=1))", "wrong"),
    "a thread that finishes later": (
        """
        y = torch.empty_like(x)
        def later():
            time.sleep(0.05)
            y.copy_(torch.cumsum(x * self.weight, dim=1))
        threading.Thread(target=later).start()
        return y
        """,
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_fails_at_check(scaled_rows, name):
    forward, words = WRONG[name]
    assert words in failed(scaled_rows, candidate(forward), "check").reason


BROKEN_CALLS = {
    "the input as the result": ("return x", "memory of an input"),
    "os._exit(0)": ("os._exit(0)", "exit code 0"),
    "sys.exit": ("sys.exit(0)", "SystemExit"),
    "a segmentation fault": ("ctypes.string_at(0)", "SIGSEGV"),
    "a hang that ignores SIGTERM": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
        "no answer within",
    ),
    "stopping itself": ("os.kill(os.getpid(), signal.SIGSTOP)\n" + RIGHT, "no answer within"),
    "an input changed in place": ("y = torch.cumsum(x * self.weight, dim=1); x.zero_(); return y", "changed input 0"),
    "a lazy tensor": ("class Lazy(torch.Tensor): pass\nreturn x.as_subclass(Lazy)", "not a plain tensor"),
    "an address made up": ("y = torch.empty_like(x); y.data_ptr = lambda: 4096; return y", "outside the memory"),
    "words instead of tensors": ("return object()", "cannot be handed over"),
    "bytes sent unasked": (
        "for fd in range(3, 64):\n    try: os.write(fd, b'{\"ok\": true}')\n    except OSError: pass\n" + RIGHT,
        "",
    ),
    "a process left running": ("os.fork() or time.sleep(600)\n" + RIGHT, "processes of its own"),
}


@pytest.mark.parametrize("name", BROKEN_CALLS)
def test_a_call_that_breaks_the_rules_fails_at_run(scaled_rows, name):
    forward, words = BROKEN_CALLS[name]
    start = time.monotonic()
    assert words in failed(scaled_rows, candidate(forward), "run").reason
    assert time.monotonic() - start < 40


def test_a_daemon_that_forks_twice_is_ended(scaled_rows):
    top = """
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        ctypes.CDLL(None).prctl(15, b"kwdaemon", 0, 0, 0)
        time.sleep(600)
    time.sleep(0.2)
    """
    scaled_rows.judge(candidate(RIGHT, top=top))
    names = [path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    assert "kwdaemon" not in names


def test_nothing_of_a_candidate_is_left_in_the_temporary_folder(scaled_rows, tmp_path, monkeypatch):
    scaled_rows.judge(candidate(RIGHT))  # its references stay
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scaled_rows.judge(candidate(RIGHT))
    locks_of_judges = {f"kernelwright-{os.getuid()}-processor.{name}" for name in ("turn", "door")}
    assert {path.name for path in tmp_path.iterdir()} <= locks_of_judges


def test_a_reference_that_does_not_run_is_the_problems_fault():
    source = "import torch\nclass Model(torch.nn.Module): pass\ndef get_inputs(): return [torch.ones(2)]\n"
    problem = Problem(
        name="broken", title="", family="", size="file", source=source + "def get_init_inputs(): return [1]\n"
    )
    with pytest.raises(BrokenProblem, match="reference of broken"):
        judge(problem, candidate(RIGHT))


def test_two_outputs_and_integers_are_judged():
    source = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, k):
        return x.argmax(1), {"top": x.amax(1) * k}
def get_inputs(): return [torch.randn(8, 16), 3]
def get_init_inputs(): return []
"""
    problem = Problem(name="two", title="", family="", size="file", source=source)
    with Judge(problem, QUICK) as keeper:
        right = Candidate(source=source.replace("class Model(", "class ModelNew("))
        wrong = Candidate(source=right.source.replace("argmax", "argmin"))
        assert isinstance(keeper.judge(right), Passed)
        assert "output 0 is wrong" in failed(keeper, wrong, "check").reason


def test_a_child_dies_with_its_judge(tmp_path):
    """A judge that is killed leaves no worker behind: the keeper sees its lifeline close."""
    import subprocess
    import sys

    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from kernelwright.sandbox.jail.process import Child
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
import time
child = Child("worker", WorkFolder(), JudgeSettings())
child.greet(time.monotonic() + 60)
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as owner:
        pid = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
