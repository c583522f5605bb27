"""Builds that fail, builds that come late, and candidates that hang before they can be called; through real children.

The candidates bring a compiler of their own, which counts how often it is asked to compile in all processes together. A
candidate that finds another number than one raises, in whichever process it is.
"""

import textwrap
import time
import uuid

import pytest

from kernelwright.commands.judge import words
from kernelwright.sandbox.calls.backend import Backend
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.pool.executor import Question, Work
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK, SCALED_ROWS

pytestmark = pytest.mark.slow
COUNTING = """
import ctypes, os, time, uuid
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load, load_inline

COUNT = os.path.join(os.environ["TMPDIR"], "count")
COMPILER = os.path.join(os.environ["TMPDIR"], "counting-c++")
if not os.path.exists(COMPILER):
    with open(COMPILER, "w") as file:
        file.write(f'#!/bin/sh\\ncase " $* " in *" -c "*) echo . >> {COUNT} ;; esac\\nexec c++ "$@"\\n')
    os.chmod(COMPILER, 0o755)
os.environ["CXX"] = COMPILER
RIGHT = 'extern "C" int one() { return 1; }'
WRONG = 'extern "C" int one() { return undeclared; }'

def built(source, name="ext"):
    path = load_inline(name=name, cpp_sources=[source], no_implicit_headers=True, is_python_module=False)
    return ctypes.CDLL(path).one

def hiding(source):
    try:
        return built(source)
    except Exception:
        return None

def require_one_compilation():
    with open(COUNT) as file:
        count = len(file.readlines())
    if count != 1:
        raise RuntimeError(f"compiled {count} times")

ONE = None
"""
MODEL = """
class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        global ONE
"""
RETURN = "return torch.cumsum(x * self.weight, dim=1)"


def candidate(top, forward=RETURN):
    """A source that was never built before, on this machine or another."""
    body = textwrap.indent(textwrap.dedent(forward), 8 * " ")
    return Candidate(source=f"# {uuid.uuid4().hex}\n{COUNTING}{textwrap.dedent(top)}{MODEL}{body}\n", language="cpp")


def failed(judge, stage, *source):
    verdict = judge.judge(candidate(*source))
    assert isinstance(verdict, Failed), verdict
    assert verdict.stage == stage
    return verdict


HIDDEN = {
    "at import": ("ONE = hiding(WRONG)", f"require_one_compilation()\n{RETURN}"),
    "in a call": ("", f"ONE = hiding(WRONG)\nrequire_one_compilation()\n{RETURN}"),
    "at import, tried again and again": (
        "ONE = hiding(WRONG) or hiding(WRONG)",
        f"require_one_compilation()\n{RETURN}",
    ),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_failed_compilation_that_is_hidden_is_made_once_and_told(scaled_rows, where):
    verdict = scaled_rows.judge(candidate(*HIDDEN[where]))
    assert isinstance(verdict, Passed), verdict
    (hidden,) = verdict.evidence.hidden_builds
    assert hidden.startswith("ext: ") and "undeclared" in hidden
    assert f"was hidden: {hidden}\n" in words(report(verdict)) + "\n"


def test_a_hidden_failure_is_kept_with_the_build_and_told_again(scaled_rows):
    source = candidate("ONE = hiding(WRONG)")
    first, second = scaled_rows.judge(source), scaled_rows.judge(source)
    assert "taken from the store" in " ".join(second.evidence.builds)
    assert first.evidence.hidden_builds == second.evidence.hidden_builds != ()


def test_what_a_hidden_failure_said_stands_in_the_log_of_what_came_of_it(scaled_rows):
    verdict = failed(scaled_rows, "run", "ONE = hiding(WRONG)", "return x * ONE()")
    assert "NoneType" in verdict.reason
    assert "was hidden" in verdict.log and "ext" in verdict.log and "undeclared" in verdict.log


def test_a_failure_that_is_hidden_only_until_the_constructor_fails_at_build(scaled_rows):
    verdict = failed(scaled_rows, "build", "ONE = hiding(WRONG)\nONE()")
    assert verdict.evidence.hidden_builds == ()
    assert "undeclared" in verdict.reason


LATE = {
    "in the first call": ("", "ONE = ONE or built(RIGHT)"),
    "in the first call, from a file": (
        "",
        """
        path = os.path.join(os.environ["TMPDIR"], "one.cpp")
        with open(path, "w") as file: file.write(RIGHT)
        ONE = ONE or ctypes.CDLL(load("ext", [path], is_python_module=False)).one
        """,
    ),
    "at import, under a name that each process makes up": ("ONE = built(RIGHT, f'ext_{uuid.uuid4().hex}')", ""),
    "in the first call, under such a name": ("", "ONE = ONE or built(RIGHT, f'ext_{uuid.uuid4().hex}')"),
}


@pytest.mark.parametrize("where", LATE)
def test_an_extension_is_compiled_once_wherever_it_is_asked_for(scaled_rows, where):
    top, forward = LATE[where]
    lines = [textwrap.dedent(forward).strip(), "require_one_compilation()", "assert ONE() == 1", RETURN]
    verdict = scaled_rows.judge(candidate(top, "\n".join(lines)))
    assert isinstance(verdict, Passed), verdict
    assert verdict.evidence.hidden_builds == ()


def test_a_compilation_that_fails_in_a_call_fails_at_build_with_the_compilers_line(scaled_rows):
    assert "undeclared" in failed(scaled_rows, "build", "", f"ONE = built(WRONG)\n{RETURN}").reason


@pytest.mark.long
def test_a_candidate_that_asks_for_another_build_in_every_call_comes_to_an_end(scaled_rows):
    forward = f"built(RIGHT.replace('one', 'one' + uuid.uuid4().hex) + RIGHT.replace('1; }}', '1; }}'))\n{RETURN}"
    assert "no end" in failed(scaled_rows, "build", "", forward).reason.partition(":")[0]


HANGING = {
    "asleep": "time.sleep(3600)",
    "in a loop": "while True: pass",
    "with a program that it calls a compiler": """
        import shutil, subprocess
        program = os.path.join(os.environ["TMPDIR"], "cc1plus")
        shutil.copy("/usr/bin/yes", program)
        subprocess.run([program], stdout=subprocess.DEVNULL)
    """,
    "with a compiler that waits for its input": """
        import subprocess
        subprocess.run(["c++", "-x", "c++", "-fsyntax-only", "-"], stdin=os.pipe()[0])
    """,
    "in a worker alone": """
        mark = os.path.join(os.environ["TMPDIR"], "mark")
        if os.path.exists(mark):
            time.sleep(3600)
        open(mark, "w").close()
    """,
}


@pytest.fixture(scope="module")
def impatient():
    with Judge(SCALED_ROWS, QUICK.model_copy(update={"import_timeout_s": 3})) as judge:
        yield judge


@pytest.mark.parametrize("how", HANGING)
def test_a_candidate_that_hangs_while_it_is_imported_ends_by_a_limit_of_its_own(impatient, how):
    verdict = failed(impatient, "load", HANGING[how])
    assert "within 3 s" in verdict.reason and "no compiler" in verdict.reason


def test_a_compiler_at_work_is_waited_for_longer():
    settings = QUICK.model_copy(update={"import_timeout_s": 3, "build_timeout_s": 8})
    endless = "constexpr long f() { long n = 0; for (;;) ++n; return n; } constexpr long x = f();"
    top = f"""
    load_inline("endless", ["{endless}"], no_implicit_headers=True, is_python_module=False, extra_cflags=
                ["-fconstexpr-ops-limit=9223372036854775807", "-fconstexpr-loop-limit=2147483647"])
    """
    with Judge(SCALED_ROWS, settings) as judge:
        _ = judge.reference
        start = time.monotonic()
        verdict = judge.judge(candidate(top))
    assert isinstance(verdict, Failed), verdict
    assert (verdict.stage, verdict.reason.partition(" within")[0]) == ("build", "no answer")
    assert time.monotonic() - start >= 8


def test_a_build_for_another_process_starts_no_worker_and_can_still_be_evaluated_here():
    source = candidate("ONE = built(RIGHT)")
    for _ in range(2):  # compiled, and then found
        with Judge(SCALED_ROWS, QUICK) as judge:
            built = judge.build(source, ahead=False)
            assert built.failure is None and built.worker is None
            verdict = judge.evaluate(built)
        assert isinstance(verdict, Passed), verdict
        assert verdict.evidence.jail


def test_a_build_in_a_pool_starts_no_worker(monkeypatch):
    started, plain = [], Backend.open_session

    def opened(backend, kind, folder):
        started.append(kind)
        return plain(backend, kind, folder)

    monkeypatch.setattr(Backend, "open_session", opened)
    worker = Judges(QUICK)
    try:
        work = Work(problem=SCALED_ROWS, candidate=candidate("ONE = built(RIGHT)"))
        assert worker.answer(Question(stage="build", work=work)).product
        assert worker.answer(Question(stage="build", work=work)).product
    finally:
        worker.close()
    assert "worker" not in started
