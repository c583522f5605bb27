"""Outcomes of racecheck and synccheck for kept kernels."""

import json

import pytest

from bench.results.again import check_hazards, read_hazards
from bench.results.records import read_index
from bench.results.tags import tags
from kernelwright.sandbox.gpu_tools import parse_hazards as read
from kernelwright.sandbox.gpu_tools import sanitizer_command
from tests.bench.results.walk import ROOT

SUMMARIES = {
    "clean": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "12 hazard": "========= RACECHECK SUMMARY: 12 hazards displayed (12 errors, 0 warnings)",
    "1 hazard": "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)",
    "3 error": "========= Barrier error detected.\n========= ERROR SUMMARY: 3 errors",
}


@pytest.mark.parametrize("outcome", SUMMARIES)
def test_the_summary_of_a_tool_is_its_outcome(outcome):
    assert read(SUMMARIES[outcome]) == outcome


def test_no_summary_and_a_program_that_broke_off_are_silence():
    assert read("", said="killed").startswith("silent")
    assert read(SUMMARIES["clean"], ended_well=False).startswith("silent")


def test_only_memcheck_pads_allocations():
    assert "--padding" in sanitizer_command("tool", "report")
    words = sanitizer_command("tool", "report", "racecheck")
    assert words[words.index("--tool") + 1] == "racecheck" and "--padding" not in words


def test_what_has_an_outcome_is_not_run_again(tmp_path):
    index = read_index(ROOT / "results")
    (tmp_path / "index.json").write_text(index.model_dump_json())
    known = {row.facts.best.candidate_digest: {"racecheck": "clean"} for row in index.rows if row.facts.best}
    (tmp_path / "hazards.json").write_text(json.dumps(known))
    assert check_hazards(tmp_path, tmp_path, pytest.fail) == 0 and read_hazards(tmp_path) == known


FIXED = "constexpr int kRows = 64; // 132 blocks\nconstexpr int kPitch = 132;"


def found(source, dtype="float32"):
    return set(tags(source, dtype)) - {"no shape check", "no device guard"}


@pytest.mark.parametrize(
    ("source", "dtype", "tag"),
    [
        ('asm("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 ")', "float32", "emulated fp32 (fp16x3)"),
        ('asm("wgmma.mma_async.m64n128k16.f32.f16.f16 wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 ")',
         "float32", "emulated fp32 (fp16 and int8)"),
        ('asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 ")', "float32", "emulated fp32 (tf32x3)"),
        ('asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ")', "float16", None),
        ("while (load_acquire(counter) < target) __nanosleep(20);", "float32", "spin barrier"),
        ("int look(int* p) { int v; asm(\"ld.acquire.gpu\"); return v; }\ndo { for (;;) { v = look(p); } } while (v);",
         "float32", "spin barrier"),
        ("cg::this_grid().sync();", "float32", "spin barrier"),
        ("while (true) { if (tile < total) claimed = atomicAdd(counter, 1); }", "float32", None),
        ("__device__ unsigned int finished = 0;", "float32", "device globals"),
        ("__device__ float partials[kBlocks * kBatch];", "float32", "device globals"),
        ("__device__ const int4 kItems[4] = {1};\n__device__ int add(int a) { return a; }", "float32", None),
        ("constexpr int kBlocks = 132;", "float32", "fixed multiprocessors"),
        (FIXED, "float32", None),
        ("constexpr int kBlocks = 132; cudaDevAttrMultiProcessorCount", "float32", None),
    ],
)  # fmt: skip
def test_a_rule_finds_the_property_and_nothing_that_looks_like_it(source, dtype, tag):
    assert found(source, dtype) == ({tag} if tag else set())


@pytest.mark.parametrize(
    ("source", "checks"),
    [
        ("if x.shape != (4, 4):\n    raise ValueError", True),
        ("rows, columns = x.shape\nif columns != 8:\n    raise ValueError", True),
        ("kernel(x.data_ptr(), x.numel())", True),
        ("assert weight.size(0) == 3", True),
        ('SOURCE = "TORCH_CHECK(x.size(0) == 3);"', True),
        ("images = x.shape[0]\nif error:\n    raise RuntimeError", False),
    ],
)
def test_a_shape_check_reads_the_shape_in_a_condition(source, checks):
    assert ("no shape check" not in tags(source, "float32")) is checks


def test_a_guard_and_an_algorithm_below_the_roofline_are_told():
    assert "no device guard" not in tags("with torch.cuda.device(x.device):\n    pass", "float32")
    assert "other algorithm" in tags("pass", "float32", is_below_roofline=True)
