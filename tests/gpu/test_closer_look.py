"""A closer look at what was judged: which tool's word counts for what, with small programs in place of the tools."""

import pytest

from kernelwright.options import JudgingOptions
from kernelwright.problems import Problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.gpu_tools import Subject, looked_at
from kernelwright.sandbox.jail.process import ChildLate
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.report import timings
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from kernelwright.terminal import UserMistake
from tests.gpu.test_tools import CLEAN, COUNTERS, OVERRUN
from tests.support.problems import PROBLEM, RIGHT, stateless, tiny_problem

SETTINGS = JudgeSettings(threads=1)
RAISING = RIGHT.replace("return torch.cumsum(x, dim=1)", "raise ValueError('not under a tool')")
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --log-file) report=$2; shift 2;;
        --) shift; break;;
        */python*) break;;
        *) shift;;
    esac
done
"$@"
code=$?
[ $code = 0 ] && printf %s '{said}' > $report
exit $code
"""
PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a program on the path that runs another one and then reports what it was made to."""
    folder = tmp_path / "tools" / "own"
    folder.mkdir(parents=True)
    for part in (folder, folder.parent):
        part.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name, said):
        (folder / name).write_text(STAND_IN.replace("{said}", said))
        (folder / name).chmod(0o755)

    return make


@pytest.fixture(scope="module")
def reference():
    problem = Problem(name="sums", title="Running sums", family="test", size="cpu", source=PROBLEM)
    session = backend_of(SETTINGS).reference(problem)
    yield session
    session.close()


@pytest.fixture
def subject(reference):
    """Makes the subject of a look: a candidate and what is asked for."""
    made = []

    def make(source=RIGHT, **asked):
        built = Built(Candidate(source=source), backend_of(SETTINGS))
        made.append(built)
        path = built.folder.write("candidate.py", source)
        load = {"source": str(path), "entry": "ModelNew", "built": str(built.folder.path / "build"), "threads": 1}
        load["cores"] = list(SETTINGS.cores)
        return Subject(built, lambda: load, lambda: reference, SETTINGS.model_copy(update=asked))

    yield make
    for built in made:
        built.close()


@pytest.mark.long
@pytest.mark.slow
def test_what_is_right_and_clean_passes_with_the_word_of_the_tool(subject, tool):
    tool("compute-sanitizer", CLEAN)
    one = subject(sanitize=True)
    with looked_at(one):
        pass
    assert one.built.look.memcheck.state == "clean"
    assert one.built.seconds["check"] > 0


@pytest.mark.long
@pytest.mark.slow
def test_a_fault_in_what_is_right_fails_the_check_with_the_deciding_line_first(subject, tool):
    tool("compute-sanitizer", OVERRUN)
    with pytest.raises(StageFailed) as failure, looked_at(subject(sanitize=True)):
        pass
    assert failure.value.stage == "check"
    assert failure.value.reason.startswith("Invalid __global__ write of size 4 bytes in kernel shift(")
    assert "thread (106,0,0)" in failure.value.log


@pytest.mark.long
@pytest.mark.slow
def test_a_fault_leads_the_reason_of_a_failure_whose_stage_stays(subject, tool):
    tool("compute-sanitizer", OVERRUN)
    one = subject(sanitize=True)
    with pytest.raises(StageFailed) as failure, looked_at(one):
        one.built.worker = backend_of(SETTINGS).open_session("worker", one.built.folder)
        raise StageFailed("run", "CUDA error: an illegal memory access was encountered")
    first, _, last = failure.value.reason.splitlines()
    assert failure.value.stage == "run"
    assert first.startswith("Invalid __global__ write")
    assert last.startswith("CUDA error")


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_in_which_the_tool_finds_nothing_stays_as_it_is(subject, tool):
    tool("compute-sanitizer", CLEAN)
    one = subject(sanitize=True)
    with pytest.raises(StageFailed, match=r"^wrong values$"), looked_at(one):
        one.built.worker = backend_of(SETTINGS).open_session("worker", one.built.folder)
        raise StageFailed("check", "wrong values")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("is_unsteady", [False, True])
def test_where_a_result_changes_from_call_to_call_racecheck_looks_too(subject, tool, is_unsteady):
    tool("compute-sanitizer", f"{CLEAN}\n========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n")
    one = subject(sanitize=True)
    with pytest.raises(StageFailed, match=r"^wrong values$") as failure, looked_at(one):
        one.built.worker = backend_of(SETTINGS).open_session("worker", one.built.folder)
        raise StageFailed("check", "wrong values", is_unsteady=is_unsteady)
    assert ("racecheck of shared memory: 3 " in failure.value.log) is is_unsteady


@pytest.mark.long
@pytest.mark.slow
def test_what_took_too_long_is_not_looked_at(subject, tool):
    tool("compute-sanitizer", OVERRUN)
    one = subject(sanitize=True)
    with pytest.raises(StageFailed, match=r"^no answer within"), looked_at(one):
        one.built.worker = backend_of(SETTINGS).open_session("worker", one.built.folder)
        with one.built.stage("run"):
            raise ChildLate
    assert one.built.look is None


@pytest.mark.parametrize("stage", ["scan", "build"])
def test_what_never_ran_is_not_looked_at(subject, tool, stage):
    tool("compute-sanitizer", OVERRUN)
    one = subject(sanitize=True)
    with pytest.raises(StageFailed, match=r"^as before$"), looked_at(one):
        raise StageFailed(stage, "as before")
    assert one.built.look is None


@pytest.mark.long
@pytest.mark.slow
def test_silence_about_one_candidate_refuses_nobody(subject, tool):
    tool("compute-sanitizer", CLEAN)
    one = subject(RAISING, sanitize=True)
    with looked_at(one):
        pass
    assert one.built.look.memcheck.state == "silent"
    assert one.built.look.memcheck.why == "ValueError: not under a tool"


@pytest.mark.long
@pytest.mark.slow
def test_a_tool_that_never_says_anything_is_the_machines_lack(subject, tool):
    tool("compute-sanitizer", "")
    with pytest.raises(MachineError, match="compute-sanitizer"), looked_at(subject(sanitize=True)):
        pass


@pytest.mark.long
@pytest.mark.slow
def test_counters_are_kept(subject, tool):
    tool("ncu", COUNTERS)
    one = subject(profile=True)
    with looked_at(one):
        pass
    assert [launch.kernel for launch in one.built.look.counters] == ["relu", "add"]
    assert one.built.look.obstacle == ""


@pytest.mark.long
@pytest.mark.slow
def test_a_driver_that_keeps_its_counters_fails_nobody_and_is_explained(subject, tool):
    tool("ncu", PERMISSION)
    one = subject(profile=True)
    with looked_at(one):
        pass
    assert one.built.look.counters == ()
    assert "NVreg_RestrictProfilingToAdminUsers=0" in one.built.look.obstacle


SUM = """
#include <cstdint>
extern "C" void sums(const float* x, float* out, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        PRAGMA
        for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c];
        out[r] = sum;
    }
}
"""
SUMMED = """
import ctypes, torch
from torch.utils.cpp_extension import load_inline
library = ctypes.CDLL(load_inline(name="sums", cpp_sources=[SOURCE], extra_cflags=["-O3", "-march=native", "-fopenmp"],
                                  no_implicit_headers=True, is_python_module=False))
library.sums.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0])
        library.sums(x.data_ptr(), out.data_ptr(), *x.shape)
        return out
"""


@pytest.mark.slow
@pytest.mark.parametrize(("pragma", "is_scalar"), [("", True), ("#pragma omp simd reduction(+ : sum)", False)])
def test_a_loop_of_a_processor_that_is_not_vectorised_is_told(pragma, is_scalar):
    problem = tiny_problem(stateless("x.sum(1)", "torch.randn(64, 4096)"))
    source = SUMMED.replace("SOURCE", repr(SUM.replace("PRAGMA", pragma)))
    settings = SETTINGS.model_copy(update={"profile": True, "effort": "search"})
    with Judge(problem, settings) as judge:
        verdict = judge.judge(Candidate(source=source))
    assert isinstance(verdict, Passed), verdict
    (code,) = (one for one in verdict.evidence.look.code if one.kernel == "sums")
    assert ("scalar instructions and no vector" in timings(verdict)) is is_scalar, code


def test_without_a_gpu_memcheck_is_the_users_mistake():
    with pytest.raises(UserMistake, match=r"--sanitize .*GPU"):
        JudgingOptions(sanitize=True).check_tools(gpu=False)


def test_a_tool_that_is_missing_is_the_machines_lack(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernelwright.sandbox.machine.TOOL_PLACES", ())
    with pytest.raises(MachineError, match="--profile needs ncu"):
        JudgingOptions(profile=True).check_tools(gpu=True)
    with pytest.raises(MachineError, match="--profile needs objdump"):
        JudgingOptions(profile=True).check_tools(gpu=False)
    JudgingOptions(profile=True).check_tools(gpu=True, local=False)
