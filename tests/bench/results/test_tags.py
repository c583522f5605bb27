"""Tags of kept kernels: each rule with a source that has the property and one that only looks like it."""

import pytest

from bench.results.tags import tags

FIXED = "constexpr int kRows = 64; // 132 blocks\nconstexpr int kPitch = 132;"


def found(source, dtype="float32"):
    return set(tags(source, dtype)) - {"no shape check", "no device guard"}


@pytest.mark.parametrize(
    ("source", "dtype", "tag"),
    [
        ('asm("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 ")', "float32", "emulated fp32 (fp16x3)"),
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
