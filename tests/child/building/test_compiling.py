"""The stand-in for the compiler, with headers of one line in place of torch's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright_child.building import compiling, flags

ROOT = Path(__file__).parents[3]
WHOLE = "int narrow_name = 1; int whole_name = 2;"
USES_NARROW = "#include <torch/extension.h>\nint f() { return narrow_name; }"
USES_WHOLE = "#include <torch/extension.h>\nint f() { return whole_name; }"
WRONG = "#include <torch/extension.h>\nint f() { return no_name; }"
LEAN = """#define TORCH_EXTENSION_NAME ext
#define PYBIND11_MODULE(name, m) struct Module { void def(const char*, int (*)(), const char*); }; void bind(Module m)
namespace torch { inline int (*wrap_pybind_function(int (&f)()))() { return &f; } }
"""
BOUND = """#include <torch/extension.h>
int f() { return 3; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
m.def("f", torch::wrap_pybind_function(f), "f");
}
"""
CALL = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from kernelwright_child.building.compiling import main; main(sys.argv[1:])"
)


@pytest.fixture
def plan(tmp_path):
    """Headers for a compilation with -fPIC; the stock one lies in `stock`."""
    digest = flags.digest(["-fPIC"])
    for folder, text in (
        (f"headers/{digest}/lean-1", LEAN),
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
        "folders": {"lean": "lean-1", "narrow": "narrow", "whole": "whole"},
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
    return run(
        plan, "-isystem", str(tmp_path / "stock"), "-fPIC", *more, "-c", str(source), "-o", str(tmp_path / "main.o")
    )


def told(plan):
    return [json.loads(line) for line in Path(plan["report"]).read_text().splitlines()]


def test_the_narrow_header_is_taken_where_it_will_do(plan, tmp_path):
    assert compile_text(plan, tmp_path, USES_NARROW).returncode == 0
    assert [(entry["way"], entry["failed"]) for entry in told(plan)] == [("narrow", [])]


def test_the_lean_header_is_taken_where_torch_writes_the_binding_and_the_link_gets_what_belongs_to_it(plan, tmp_path):
    assert compile_text(plan, tmp_path, BOUND).returncode == 0
    binding = tmp_path / "headers" / flags.digest(["-fPIC"]) / "lean-1" / "binding"
    binding.with_suffix(".cpp").write_text("struct Module { void def(const char*, int (*)(), const char*); };"
                                           "void Module::def(const char*, int (*)(), const char*) {}")  # fmt: skip
    subprocess.run(["g++", "-fPIC", "-c", binding.with_suffix(".cpp"), "-o", binding.with_suffix(".o")], check=True)
    words = [str(tmp_path / "main.o"), "-shared", "-Wl,--no-undefined", "-o", str(tmp_path / "a.so")]
    assert run(plan, *words).returncode == 0
    assert [entry["way"] for entry in told(plan)] == ["lean", "stock"]


def test_an_object_that_was_compiled_another_way_since_is_linked_with_nothing_more(plan, tmp_path):
    compile_text(plan, tmp_path, BOUND)
    compile_text(plan, tmp_path, USES_WHOLE)
    assert run(plan, str(tmp_path / "main.o"), "-shared", "-o", str(tmp_path / "a.so")).returncode == 0


def test_what_does_not_compile_with_the_lean_header_gets_the_whole_one_next(plan, tmp_path):
    assert compile_text(plan, tmp_path, BOUND.replace("3;", "whole_name;")).returncode == 1  # it has no such macro
    assert [(entry["way"], entry["failed"], entry["header"]) for entry in told(plan)] == [("whole", ["lean"], "whole")]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        (BOUND, "lean"),
        (BOUND.replace("}\n", "}\n// more\n"), "narrow"),
        (BOUND.replace("return 3;", "py::gil_scoped_release no_gil; return 3;"), "narrow"),
        (BOUND.replace("torch::wrap_pybind_function(f)", "&f"), "narrow"),
        (BOUND.replace("return 3;", "torch::nn::Linear l; return 3;"), "whole"),
        (USES_NARROW, "narrow"),
    ],
)
def test_a_source_gets_the_quickest_header_that_has_what_it_names(text, header):
    assert flags.header_for(text) == header


def test_the_whole_header_is_taken_where_the_narrow_one_does_not_compile(plan, tmp_path):
    done = compile_text(plan, tmp_path, USES_WHOLE)
    assert (done.returncode, done.stdout) == (0, "")
    assert [(entry["way"], entry["failed"], entry["header"]) for entry in told(plan)] == [
        ("whole", ["narrow"], "whole")
    ]


def test_what_compiles_nowhere_is_told_once(plan, tmp_path):
    done = compile_text(plan, tmp_path, WRONG)
    assert done.returncode == 1
    assert done.stdout.count("error: ") == 1


def test_without_a_header_for_its_flags_a_file_goes_the_stock_way_and_says_what_it_wanted(plan, tmp_path):
    assert compile_text(plan, tmp_path, USES_WHOLE, "-O2").returncode == 0
    assert [(entry["way"], entry["flags"]) for entry in told(plan)] == [("stock", ["-fPIC", "-O2"])]


def test_a_file_without_the_header_goes_the_stock_way(plan, tmp_path):
    assert compile_text(plan, tmp_path, "int f() { return 3; }").returncode == 0
    assert [entry["way"] for entry in told(plan)] == ["stock"]


def test_a_plan_without_narrow_headers_takes_the_whole_one_at_once(plan, tmp_path):
    assert compile_text(plan | {"folders": {"whole": "whole"}}, tmp_path, USES_NARROW).returncode == 0
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
    digest = flags.digest(["-fPIC"])
    (tmp_path / "headers" / digest / "whole" / "torch" / "extension.h").write_text("#error PCH can not be placed")
    assert compile_text(plan | {"folders": {"whole": "whole"}}, tmp_path, USES_WHOLE).returncode == 0
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
