"""Tools around a candidate's call: what their reports say, and how a jailed child runs one, tried with a stand-in."""

import json

import pytest
import torch

from kernelwright.sandbox import gpu_tools, machine
from kernelwright.sandbox.gpu_tools import Tool, ToolTask, run_under
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import KernelTime, Look
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.observe import machine_code
from tests.support.tensors import listed

CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
OVERRUN = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at shift(const float *, float *, int)+0x1c0 in overrun.cu:14
=========     by thread (105,0,0) in block (986,0,0)
=========     Access at 0x7f1c3a3da4e4 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f1c3a000000 of size 4,039,844 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at shift(const float *, float *, int)+0x1c0 in overrun.cu:14
=========     by thread (106,0,0) in block (986,0,0)
=========     Access at 0x7f1c3a3da4e8 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f1c3a000000 of size 4,039,844 bytes
=========
========= Target application returned an error
========= ERROR SUMMARY: 7 errors
"""
INLINED = """========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at load_tile(float4 *, int)+0x390 in tile.cu:97
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x82 is misaligned
=========         Device Frame: product(const float *, float *)+0x310 in tile.cu:214
========= ERROR SUMMARY: 1 error
"""
OLDER = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at 0xd80 in /tmp/build/add.cu:162:void add<__half>(T1 *, int)
=========     by thread (63,0,0) in block (506,0,0)
=========     Address 0x7fcd07a0312c is out of bounds
=========     and is 12589 bytes after the nearest allocation at 0x7fcd079ffc00 of size 1024 bytes
========= ERROR SUMMARY: 1 error
"""
NOT_STARTED = """========= COMPUTE-SANITIZER
========= Error: No attachable process found. compute-sanitizer timed-out.
========= Default timeout can be adjusted with --launch-timeout. Awaiting target completion.
"""


def test_a_write_beyond_an_allocation_is_told_with_kernel_access_size_and_place():
    found = gpu_tools.read_memcheck(OVERRUN, ended_well=False)
    assert (found.state, found.errors, len(found.faults)) == ("found", 7, 2)
    fault = str(found.faults[0])
    for word in ("write of size 4", "shift(", "overrun.cu:14", "out of bounds, 1 bytes", "4039844", "(105,0,0)"):
        assert word in fault


def test_the_deciding_line_comes_first_and_the_count_after_it():
    first, last = str(gpu_tools.read_memcheck(OVERRUN)).splitlines()
    assert first.startswith("Invalid __global__ write")
    assert last == "7 errors in all"


def test_of_an_inlined_function_the_kernel_around_it_is_named():
    fault = gpu_tools.read_memcheck(INLINED).faults[0]
    assert (fault.kernel, fault.where) == ("product(const float *, float *)", "tile.cu:97")
    assert fault.relation == "misaligned"


def test_reports_of_older_releases_are_read_too():
    fault = gpu_tools.read_memcheck(OLDER).faults[0]
    assert (fault.kernel, fault.where) == ("void add<__half>(T1 *, int)", "/tmp/build/add.cu:162")
    assert "out of bounds, 12589 bytes" in fault.relation and "1024" in fault.relation


def test_a_report_without_errors_is_clean_only_if_the_program_came_to_its_end():
    assert gpu_tools.read_memcheck(CLEAN).state == "clean"
    cut = gpu_tools.read_memcheck(CLEAN, ended_well=False, said="Traceback\nRuntimeError: no kernel image")
    assert (cut.state, cut.why) == ("silent", "RuntimeError: no kernel image")


@pytest.mark.parametrize("report", ["", "=========", "========= ERROR SUMMARY: many", "\x00\xff" * 99])
def test_no_report_is_silence(report):
    assert gpu_tools.read_memcheck(report).state == "silent"


def test_a_tool_that_can_not_attach_says_so():
    assert "No attachable process" in gpu_tools.read_memcheck(NOT_STARTED).why


def test_errors_of_an_unknown_kind_refuse_nobody():
    found = gpu_tools.read_memcheck("========= Something new\n========= ERROR SUMMARY: 3 errors\n")
    assert found.state == "silent" and found.why.startswith("3 errors")


def test_what_the_program_prints_is_no_part_of_the_report():
    assert gpu_tools.read_memcheck(f"Invalid __global__ write of size 4 bytes\n{CLEAN}").state == "clean"


def test_a_flood_of_faults_stays_a_small_record():
    flood = "========= Invalid __global__ write of size 4 bytes\n=========     at f+0x10 in " + "x" * 5000 + ":1\n"
    found = gpu_tools.read_memcheck(flood * 5000)
    assert len(found.model_dump_json()) < 10_000
    assert found.errors == 5000


def test_memcheck_is_told_to_leave_errors_of_the_library_out():
    words = gpu_tools.sanitizer_command("compute-sanitizer", "/tmp/report")
    assert words[words.index("--report-api-errors") + 1] == "no"
    assert words[-1] == "--"


HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
COUNTERS = f"""==PROF== Connected to process 1 (/usr/bin/python3.12)
a line of the program
==PROF== Disconnected from process 1
{HEADER}
"0","1","relu","dram__bytes.sum","Mbyte","67.1"
"0","1","relu","launch__registers_per_thread","register/thread","16"
"0","1","relu","dram__throughput.avg.pct_of_peak_sustained_elapsed","","n/a"
"1","1","add","dram__bytes.sum","Mbyte","1.0"
"1","1","add","some__other_metric","","1"
"""


def test_the_report_of_ncu_is_read_by_launch():
    first, second = gpu_tools.read_counters(COUNTERS)
    assert first.kernel == "relu"
    assert first.metrics == {
        "bytes from and to device memory": "67.1 Mbyte",
        "registers a thread": "16 register/thread",
    }
    assert second.metrics == {"bytes from and to device memory": "1.0 Mbyte"}
    assert first.values == {"dram__bytes.sum": 67.1, "launch__registers_per_thread": 16.0}


def test_a_missing_permission_is_explained_with_what_helps_in_a_jail():
    output = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    assert gpu_tools.read_counters(output) == []
    told = gpu_tools.ncu_obstacle(output)
    assert "only administrators" in told
    assert "NVreg_RestrictProfilingToAdminUsers=0" in told
    assert "never administrators" in told


def test_another_complaint_of_ncu_is_told_as_it_is():
    assert gpu_tools.ncu_obstacle("==ERROR== Failed to find metric x\n==PROF== bye") == "Failed to find metric x"
    assert gpu_tools.ncu_obstacle("") == "ncu reported no kernel"


@pytest.mark.parametrize("prints", [COUNTERS, ""])
def test_a_run_profiles_where_ncu_reads_counters(monkeypatch, tmp_path, prints):
    (tmp_path / "ncu").write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for effort, expected in ("search", bool(prints)), ("screen", False):
        assert gpu_tools.profiled_where_possible(JudgeSettings(device="cuda", effort=effort)).profile is expected


def test_ncu_leaves_the_clocks_alone_and_looks_at_marked_launches_only():
    words = gpu_tools.ncu_command("ncu", "/tmp/report")
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--profile-from-start") + 1] == "off"


def test_of_many_launches_ncu_looks_at_those_of_the_costly_kernels():
    few = [KernelTime(name="void mine::tile<128, true>(float*)", launches=3, ms=0.7)]
    many = [
        *few,
        KernelTime(name="void mine::tile<64, true>(float*)", launches=1, ms=0.1),
        KernelTime(name="void pack<(bool)1>(float*)", launches=20, ms=0.15),
        KernelTime(name="touch(float*)", launches=40, ms=0.05),
    ]
    assert "--kernel-name" not in gpu_tools.ncu_command("ncu", "/tmp/report", kernels=few)
    words = gpu_tools.ncu_command("ncu", "/tmp/report", kernels=many)
    assert words[words.index("--kernel-name") + 1] == "regex:^(tile$|pack$)"


SASS = """\
\t\tFunction : _Z4tilePf
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/                   LDG.E.128.CONSTANT R8, [R2.64+0x10] ;
        /*0030*/             @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;
\t\tFunction : _Z4fillPf
        /*0000*/                   STG.E desc[UR4][R2.64], R5 ;
"""


def test_opcodes_are_counted_by_kernel(tmp_path, monkeypatch):
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "built.so").write_text(SASS)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    found = dict(machine_code(["cat"]))
    assert found["_Z4tilePf"] == {"LDG.E.128.CONSTANT": 2, "LDC": 1, "UIADD3": 1}
    assert found["_Z4fillPf"] == {"STG.E": 1}


def test_where_nothing_ran_on_a_device_there_is_no_look():
    assert Look.at([]) is None


def test_times_that_are_none_are_left_out():
    assert Look.at([("f", 1, float("nan")), ("g", 1, -1.0), ("h", 0, 1.0), ("i", 1, float("inf"))]) is None


def test_a_tool_that_is_not_there_is_named_with_the_option_that_asks_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "TOOL_PLACES", ())
    with pytest.raises(MachineError, match="--sanitize needs compute-sanitizer"):
        machine.require_closer_look(sanitize=True, profile=False)


def test_what_a_linked_tool_needs_is_where_it_really_lies(tmp_path):
    home = tmp_path / "toolkit" / "sanitizer"
    home.mkdir(parents=True)
    (home / "compute-sanitizer").touch()
    (tmp_path / "link").symlink_to(home / "compute-sanitizer")
    assert str(home) in gpu_tools.folders(str(tmp_path / "link"))


STAND_IN = """#!/bin/sh
report=$1; shift
echo "STARTED $MARK" > $report
"$@"
code=$?
echo "EXIT $code" >> $report
exit $code
"""
SOURCE = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))
    def forward(self, x):
        assert torch.equal(self.weight.cpu(), torch.full((3,), 2.0)), self.weight
        print("sum", float((x * self.weight).sum()), flush=True)
        {more}
        return x
"""
SETTINGS = JudgeSettings(threads=1)


@pytest.fixture
def tool(tmp_path):
    """A program that starts another, as the tools do; readable for whoever a child becomes."""
    folder = tmp_path / "tools"
    folder.mkdir()
    folder.chmod(0o755)
    path = folder / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return Tool(str(path), (str(path), "{report}"), {"MARK": "here"})


@pytest.fixture
def folder():
    made = WorkFolder()
    yield made
    made.close()


def call(folder, more="pass"):
    source = folder.write("candidate.py", SOURCE.format(more=more))
    load = {"source": str(source), "entry": "ModelNew", "built": str(folder.path / "build"), "threads": 1}
    plan = {
        "trial": False,
        "load": load | {"cores": list(SETTINGS.cores)},
        "weights": ["weight"],
        "precision": "strict",
        "gradients": False,
    }
    kept = {"arguments": Values({"l": [{"v": 3}]}, ()), "weights": listed(torch.full((3,), 2.0))}
    return ToolTask(plan, kept | {"values": listed(torch.arange(3.0))})


@pytest.mark.slow
def test_a_call_under_a_tool_gets_the_values_and_weights_of_the_reference(tool, folder):
    ran = run_under(tool, call(folder), folder, SETTINGS)
    assert ran.ended_well, ran
    assert ran.printed.split() == ["sum", "6.0"] * 2
    assert ran.report.split() == ["STARTED", "here", "EXIT", "0"]


@pytest.mark.slow
def test_a_candidate_that_raises_under_a_tool_is_told_by_its_error(tool, folder):
    ran = run_under(tool, call(folder, "raise ValueError('not today')"), folder, SETTINGS)
    assert not ran.ended_well
    assert ran.printed.splitlines()[-1] == "ValueError: not today"


@pytest.mark.long
@pytest.mark.slow
def test_a_candidate_that_kills_its_starter_leaves_silence(tool, folder):
    ran = run_under(tool, call(folder, "__import__('os').kill(-1, 9)"), folder, SETTINGS)
    assert (ran.ended_well, gpu_tools.read_memcheck(ran.report, ran.ended_well, ran.printed).state) == (False, "silent")


@pytest.mark.slow
def test_a_program_that_is_right_tells_whether_the_tool_works_at_all(tool, folder):
    ran = run_under(tool, ToolTask({"trial": True}, {}), folder, SETTINGS)
    assert (ran.ended_well, ran.printed) == (True, "")


def test_the_plan_of_a_call_can_be_sent(folder):
    assert json.dumps(call(folder).plan)
