"""The stand-in for the compiler, with headers of one line in place of torch's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.child import compiling, flags

ROOT = Path(__file__).parent.parent.parent
WHOLE = "int narrow_name = 1; int whole_name = 2;"
USES_NARROW = "#include <torch/extension.h>\nint f() { return narrow_name; }"
USES_WHOLE = "#include <torch/extension.h>\nint f() { return whole_name; }"
WRONG = "#include <torch/extension.h>\nint f() { return no_name; }"
CALL = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from sandbox.child.compiling import main; main(sys.argv[1:])"


@pytest.fixture
def plan(tmp_path):
    """Headers for a compilation without flags; the stock one lies in `stock`."""
    digest = flags.digest([])
    for folder, text in (
        (f"headers/{digest}/narrow", "int narrow_name = 1;"),
        (f"headers/{digest}/whole", WHOLE),
        ("stock", WHOLE),
    ):
        header = tmp_path / folder / "torch" / "extension.h"
        header.parent.mkdir(parents=True)
        header.write_text(text)
        header.with_suffix(".h.gch").write_bytes(b"not one, so that the compiler takes the text")
    return {
        "cxx": "g++",
        "linker": "",
        "headers": str(tmp_path / "headers"),
        "narrow": True,
        "known_folders": [str(tmp_path / "stock")],
        "report": str(tmp_path / "report"),
    }


def run(plan, *words):
    environment = os.environ | ({compiling.PLAN: json.dumps(plan)} if plan else {})
    command = [sys.executable, "-I", "-S", "-c", CALL, "cxx", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def compile_text(plan, tmp_path, text, *more):
    source = tmp_path / "main.cpp"
    source.write_text(text)
    return run(plan, "-isystem", str(tmp_path / "stock"), *more, "-c", str(source), "-o", str(tmp_path / "main.o"))


def told(plan):
    return [json.loads(line) for line in Path(plan["report"]).read_text().splitlines()]


def test_the_narrow_header_is_taken_where_it_will_do(plan, tmp_path):
    assert compile_text(plan, tmp_path, USES_NARROW).returncode == 0
    assert [(entry["way"], entry["failed"]) for entry in told(plan)] == [("narrow", [])]


def test_the_whole_header_is_taken_where_the_narrow_one_does_not_compile(plan, tmp_path):
    done = compile_text(plan, tmp_path, USES_WHOLE)
    assert (done.returncode, done.stdout) == (0, "")
    assert [(entry["way"], entry["failed"], entry["whole"]) for entry in told(plan)] == [("whole", ["narrow"], True)]


def test_what_compiles_nowhere_is_told_once(plan, tmp_path):
    done = compile_text(plan, tmp_path, WRONG)
    assert done.returncode == 1
    assert done.stdout.count("error: ") == 1


def test_without_a_header_for_its_flags_a_file_goes_the_stock_way_and_says_what_it_wanted(plan, tmp_path):
    assert compile_text(plan, tmp_path, USES_WHOLE, "-O2").returncode == 0
    assert [(entry["way"], entry["flags"]) for entry in told(plan)] == [("stock", ["-O2"])]


def test_a_file_without_the_header_goes_the_stock_way(plan, tmp_path):
    assert compile_text(plan, tmp_path, "int f() { return 3; }").returncode == 0
    assert [entry["way"] for entry in told(plan)] == ["stock"]


def test_a_plan_without_narrow_headers_takes_the_whole_one_at_once(plan, tmp_path):
    assert compile_text(plan | {"narrow": False}, tmp_path, USES_NARROW).returncode == 0
    assert [(entry["way"], entry["failed"]) for entry in told(plan)] == [("whole", [])]


def test_a_fast_linker_that_fails_is_followed_by_the_usual_one(plan, tmp_path):
    compile_text(plan, tmp_path, "int f() { return 3; }")
    done = run(
        plan | {"linker": "none_of_that_name"}, str(tmp_path / "main.o"), "-shared", "-o", str(tmp_path / "a.so")
    )
    assert (done.returncode, (tmp_path / "a.so").exists()) == (0, True)
    assert [(entry["way"], entry["failed"]) for entry in told(plan)][1:] == [("stock", ["fast linker"])]


def test_the_linker_that_a_candidate_asks_for_is_kept(plan, tmp_path):
    compile_text(plan, tmp_path, "int f() { return 3; }")
    words = [str(tmp_path / "main.o"), "-shared", "-fuse-ld=bfd", "-o", str(tmp_path / "a.so")]
    assert run(plan | {"linker": "none_of_that_name"}, *words).returncode == 0


def test_without_a_plan_it_is_the_compiler_itself(tmp_path):
    assert run({}, "-dumpversion").stdout == subprocess.check_output(["c++", "-dumpversion"], text=True)


def test_a_compiler_that_breaks_down_over_a_header_is_called_without_it(plan, tmp_path):
    digest = flags.digest([])
    (tmp_path / "headers" / digest / "whole" / "torch" / "extension.h").write_text("#error PCH can not be placed")
    assert compile_text(plan | {"narrow": False}, tmp_path, USES_WHOLE).returncode == 0
    assert [(entry["way"], entry["failed"]) for entry in told(plan)] == [("stock", ["whole"])]


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("#include <torch/extension.h>\n__global__ void k() {}", ["narrow", "stock"]),
        ("#include <torch/extension.h>\nPYBIND11_MODULE(ext, m) {}", ["stock"]),
        ("#include <torch/extension.h>\ntorch::nn::Linear l;", ["stock"]),
        ("__global__ void k() {}", ["stock"]),
    ],
)
def test_a_cuda_file_gets_the_narrow_header_where_it_will_do(plan, tmp_path, text, ways):
    source = tmp_path / "cuda.cu"
    source.write_text(text)
    words = ["-gencode=arch=compute_90,code=sm_90", "--expt-relaxed-constexpr", "-c", str(source), "-o", "cuda.o"]
    assert list(compiling.cuda_ways(words, plan | {"narrow_cuda": str(tmp_path)})) == ways
