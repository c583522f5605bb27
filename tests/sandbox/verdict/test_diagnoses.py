"""Each rule finds its fault in the facts of a kernel that has it, and is silent on one that has not."""

import os
import time

import pytest

from kernelwright.sandbox.build import read_ptxas
from kernelwright.sandbox.verdict.diagnoses import (
    COUNTERS,
    RULES,
    Call,
    Launch,
    base_name,
    diagnose,
    lines_of,
    short_name,
)
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork
from kernelwright.sandbox.verdict.verdicts import Compiled, KernelFacts, KernelTime, Look, MachineCode
from tests.support.runs import doubted


def code_of(**opcodes):
    return (MachineCode(kernel="mine", opcodes={name.replace("_", "."): count for name, count in opcodes.items()}),)


VECTORS = code_of(vfmadd132ps_zmm=2, vfmadd132ss_xmm=15, vmovups_ymm=4)
CALL = Call(
    gpu_ms=1.0, host_ms=0.1, kernels=[("mine", 2, 0.9)], cold_ms=0.98, copy_ms=0.5, warnings=(), threads=(7.5, 8),
    code=VECTORS,
)  # fmt: skip
SERIALIZED = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient registers"
FAULTS_OF_A_CALL = {
    "host bound": {"host_ms": 3.0},
    "many launches": {"kernels": [("mine", 100, 0.5)]},
    "gaps": {"cold_ms": 0.5},
    "library kernels": {"kernels": [("mine", 1, 0.5), ("void at::native::vectorized_elementwise_kernel<4>", 1, 0.4)]},
    "copies": {"kernels": [("mine", 1, 0.5), ("Memcpy DtoD (Device -> Device)", 1, 0.4)]},
    "at the wall": {"copy_ms": 0.98},
    "idle threads": {"threads": (1.1, 8)},
    "scalar arithmetic": {"code": code_of(vmulps_ymm=1, vaddss_xmm=8)},
    "narrow vectors": {"code": code_of(mulps_xmm=4, movaps_xmm=9, maxss_xmm=4)},
    "serialised products": {"warnings": (SERIALIZED,)},
}
HEALTHY = {
    "time_ns": 1e6, "memory": 60.0, "bytes": 1.1e9, "l2": 50.0, "issue": 60.0, "tensor": 65.0, "fma": 30.0,
    "special": 10.0, "occupancy": 60.0, "loads": 100.0, "stores": 100.0, "conflicts": 1.0, "wavefronts": 1e3,
    "spills": 0.0, "registers": 96.0, "blocks": 1e4, "threads": 256.0, "waves": 20.0, "stall_selected": 1.0,
}  # fmt: skip
CODE = MachineCode(kernel="mine", opcodes={"LDG.E.128": 8, "HGMMA.64x128x16.F32": 16})
LAUNCH = Launch("mine", 1.0, 1.0, HEALTHY, Compiled(kernel="mine", registers=96, spilled_bytes=0), CODE, 1e9, True)
FAULTS_OF_A_LAUNCH = {
    "spills": {"compiled": Compiled(kernel="mine", registers=255, spilled_bytes=64), "of": HEALTHY | {"spills": 9.0}},
    "few blocks": {"of": HEALTHY | {"waves": 0.3}},
    "tail wave": {"of": HEALTHY | {"waves": 1.1}},
    "excess traffic": {"needed_bytes": 5e8},
    "device memory full": {"of": HEALTHY | {"memory": 92.0}},
    "l2 full": {"of": HEALTHY | {"l2": 90.0, "memory": 20.0}},
    "scattered loads": {"of": HEALTHY | {"loads": 25.0}},
    "scattered stores": {"of": HEALTHY | {"stores": 25.0}},
    "bank conflicts": {"of": HEALTHY | {"conflicts": 600.0}},
    "no tensor cores": {"of": HEALTHY | {"tensor": 0.3}, "code": MachineCode(kernel="mine", opcodes={"FFMA": 100})},
    "tensor cores full": {"of": HEALTHY | {"tensor": 90.0}},
    "tensor cores idle": {"of": HEALTHY | {"tensor": 20.0}},
    "fp32 units full": {"of": HEALTHY | {"fma": 85.0}},
    "special functions full": {"of": HEALTHY | {"special": 75.0}},
    "low occupancy": {"of": HEALTHY | {"occupancy": 12.0, "issue": 20.0, "tensor": 0.0}},
    "narrow loads": {"code": MachineCode(kernel="mine", opcodes={"LDG.E": 8, "HGMMA.64x128x16.F32": 16})},
}
PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN12_GLOBAL__N_14tileILi128EEEvPKfPf' for 'sm_90a'
ptxas info    : Function properties for _ZN12_GLOBAL__N_14tileILi128EEEvPKfPf
    40 bytes stack frame, 36 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a call in 'tile'
ptxas info    : Compiling entry function '_Z4fillPfi' for 'sm_90a'
ptxas info    : Used 8 registers, 364 bytes cmem[0]
"""


def found_by(name, facts):
    (rule,) = (rule for rule in RULES if rule.name == name)
    return rule.find(facts)


def test_every_rule_has_a_fault_here():
    assert {rule.name for rule in RULES} == {*FAULTS_OF_A_CALL, *FAULTS_OF_A_LAUNCH}
    assert len(RULES) >= 15


@pytest.mark.parametrize("name", [*FAULTS_OF_A_CALL, *FAULTS_OF_A_LAUNCH])
def test_a_rule_finds_its_fault_and_nothing_else(name):
    healthy, faults = (CALL, FAULTS_OF_A_CALL) if name in FAULTS_OF_A_CALL else (LAUNCH, FAULTS_OF_A_LAUNCH)
    share, evidence = found_by(name, healthy._replace(**faults[name]))
    assert 0 < share <= 1 and evidence.endswith(".") and found_by(name, healthy) is None


@pytest.mark.parametrize(
    "call",
    [
        CALL._replace(code=code_of(vdpbf16ps_zmm=64, vmulss_xmm=4, vaddss_xmm=4)),
        CALL._replace(code=code_of(vaddps_xmm=40) + code_of(vaddps_ymm=20)),
        CALL._replace(code=code_of(vaddss_xmm=128) + code_of(vaddps_zmm=24)),
        CALL._replace(code=code_of(addss_xmm=40), copy_ms=0.98),
        CALL._replace(code=code_of(addps_xmm=40), copy_ms=0.98),
    ],
)
def test_wide_vectors_anywhere_and_a_copys_time_silence_the_rules_of_a_processor(call):
    assert not [rule.name for rule in RULES if rule.name in ("scalar arithmetic", "narrow vectors") and rule.find(call)]


def test_whole_waves_leave_no_tail():
    for waves in (2.0, 3.0):
        assert found_by("tail wave", LAUNCH._replace(of=HEALTHY | {"waves": waves})) is None


def test_without_facts_every_rule_is_silent():
    bare = Launch("mine", 1.0, 0.0, {}, None, None, None, True)
    assert not [rule.name for rule in RULES if rule.of == "launch" and rule.find(bare)]
    assert not [rule.name for rule in RULES if rule.of == "call" and rule.find(Call(1.0, None, [], None, None, ()))]


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("_Z4fillPfi", "fill"),
        ("_Z4gemm14CUtensorMap_stPf", "gemm"),
        ("_ZN12_GLOBAL__N_14tileILi128EEEvPKfPf", "tile"),
        ("_ZN2ns4tileEPf", "tile"),
        ("_ZL4sumsPKfPfl", "sums"),
        ("_ZZ4sumsPfENKUlllE_clEll", "sums"),
        ("void (anonymous namespace)::tile<(int)128>(const float *, float *)", "tile"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::F>(int, float)",
            "vectorized_elementwise_kernel",
        ),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
    ],
)
def test_a_kernel_has_one_name_in_all_reports(kernel, name):
    assert base_name(kernel) == name


def test_a_reader_sees_the_instances_of_a_template():
    assert short_name("void (anonymous namespace)::tile<(int)128, (bool)1>(const float *)") == "tile<128, 1>"
    assert short_name("void ns::fill(float*)") == "ns::fill"
    assert short_name("void tile<(Kind)1, -2>(float*)") == "tile<1, -2>"


@pytest.mark.parametrize("place", ["extension", "late-0123/extension"])
def test_what_ptxas_said_is_read_by_kernel(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "ptxas.txt").write_text(PTXAS)
    compiled, (warning,) = read_ptxas(tmp_path)
    assert compiled == (
        Compiled(kernel="tile", registers=255, spilled_bytes=64),
        Compiled(kernel="fill", registers=8, spilled_bytes=0),
    )
    assert "serialized" in warning
    assert read_ptxas(tmp_path / "nothing") == ((), ())


@pytest.mark.parametrize(
    "text", ["9" * 250_000, f"ptxas info : Used {'9' * 5000} registers\n", PTXAS.replace("4tile", "9" * 5000)]
)
def test_a_build_folder_that_a_candidate_wrote_harms_nobody(tmp_path, text):
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "ptxas.txt").write_text(text + PTXAS)
    (tmp_path / "folder" / "ptxas.txt").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "ptxas.txt")
    (tmp_path / "elsewhere").symlink_to("x" * 250)
    (tmp_path / "linked").symlink_to(tmp_path / "extension")
    start = time.process_time()
    compiled, _ = read_ptxas(tmp_path)
    assert time.process_time() - start < 5
    assert {one.registers for one in compiled} <= {255, 8} and all(len(one.kernel) <= 60 for one in compiled)


def look_of(**values):
    counters = {COUNTERS[name]: value for name, value in (HEALTHY | values).items()}
    return Look(
        kernels=(KernelTime(name="void tile<128>(float*)", launches=1, ms=0.7),),
        counters=(KernelFacts(kernel="tile", metrics={}, values=counters),),
        compiled=(Compiled(kernel="tile", registers=255, spilled_bytes=64),),
    )


def test_the_most_costly_comes_first_with_its_kernel_and_at_most_three_are_told():
    measured = doubted(2.0, "confirmed").measurement
    look = look_of(spills=9.0, memory=20.0, loads=25.0, waves=0.2, conflicts=900.0, stall_barrier=8.0, tensor=0.0)
    found = diagnose(measured, look)
    assert found[0].rule == "few blocks" and "tile" in found[0].evidence
    assert {"spills", "scattered loads", "bank conflicts", "waits"} <= {one.rule for one in found}
    assert [one.at_stake for one in found] == sorted((one.at_stake for one in found), reverse=True)
    lines = list(lines_of(measured, look))
    assert sum(line.lstrip()[:2] in ("1.", "2.", "3.", "4.") for line in lines) == 3
    assert any("255 registers" in line and "1.00 ms" in line for line in lines)


def test_waits_are_named_only_where_no_unit_is_busy():
    measured = doubted(2.0, "confirmed").measurement
    assert "waits" in {one.rule for one in diagnose(measured, look_of(stall_long_scoreboard=9.0))}
    assert "waits" not in {one.rule for one in diagnose(measured, look_of(stall_long_scoreboard=9.0, memory=90.0))}


def test_tensor_cores_are_asked_for_only_where_products_decide():
    work = NecessaryWork(read_bytes=1e6, written_bytes=1e6, flops={"float32": 1e12}, least_flops={})
    look = look_of(tensor=0.0)
    for direct_ms, is_found in ((5.0, True), (0.1, False)):
        floor = Floor(work=work, memory_ms=1.0, direct_ms=direct_ms, least_ms=0.0)
        measured = doubted(2.0, "confirmed", floor=floor).measurement
        assert ("no tensor cores" in {one.rule for one in diagnose(measured, look)}) is is_found


def test_without_counters_the_rows_are_those_of_torch_and_the_reason_is_told():
    look = Look(kernels=(KernelTime(name="mine", launches=3, ms=0.5),), obstacle="no permission")
    lines = list(lines_of(doubted(2.0, "confirmed").measurement, look))
    assert "warm" in lines[0] and "mine" in lines[1] and "no permission" in lines[-1]


def test_a_launch_that_hardly_counts_has_no_diagnosis():
    measured, look = doubted(2.0, "confirmed").measurement, look_of(waves=0.2)
    short = KernelFacts(kernel="short", metrics={}, values=look.counters[0].values | {COUNTERS["time_ns"]: 1e3})
    kernels = (*look.kernels, KernelTime(name="short()", launches=40, ms=0.04))
    look = look.model_copy(update={"counters": (*look.counters, short), "kernels": kernels})
    assert {str(one).partition(":")[0] for one in diagnose(measured, look) if one.rule == "few blocks"} == {"tile"}
    assert "2 of 41 launches" in next(lines_of(measured, look))
