# ruff: noqa: RUF001 - the compiler's own quotes
"""The stand-in for the compiler, with headers of one line in place of torch's."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelwright_child import compiling

ROOT = Path(__file__).parents[2]
STOCK = "int light_name = 1; int stock_name = 2;"
USES_LIGHT = "#include <torch/extension.h>\nint f() { return light_name; }"
USES_STOCK = "#include <torch/extension.h>\nint f() { return stock_name; }"
WRONG = "#include <torch/extension.h>\nint f() { return no_name; }"
CORE = "static int light_name = 1; int glue(); inline int use_glue() { return glue(); }"
MODULE = """#define TORCH_EXTENSION_NAME ext
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
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kernelwright_child.compiling import main; main(sys.argv[1:])"
)


@pytest.fixture
def plan(tmp_path):
    """A light header with what belongs to it, for sources that are not optimised; the stock one lies in `stock`."""
    texts = {"light/kernelwright/core.h": CORE, "light/kernelwright/module.h": MODULE, "macros": "STOCK_MACRO"}
    for name, text in (texts | {"stock/torch/extension.h": STOCK, "torch/ATen/ops/empty.h": ""}).items():
        path = tmp_path / ("headers" if name in texts else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    glue = tmp_path / "headers" / "plain"
    glue.mkdir()
    for name, text in {"factories": "int glue() { return 7; }", "binding": "int bound;"}.items():
        (glue / f"{name}.cpp").write_text(text)
        subprocess.run(["g++", "-fPIC", "-c", glue / f"{name}.cpp", "-o", glue / f"{name}.o"], check=True)
    places = {"light": "headers", "torch_include": "torch", "report": "report"}
    places = {name: str(tmp_path / place) for name, place in places.items()}
    return places | {"cxx": "g++", "linker": "", "known_folders": [str(tmp_path / "stock")]}


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


def ways(plan):
    return [(entry["way"], entry["failed"], entry["compiled"]) for entry in told(plan)]


@pytest.mark.parametrize(
    ("text", "more", "way"),
    [
        pytest.param(USES_LIGHT, (), ("light", [], True), id="the light header will do"),
        pytest.param(USES_STOCK, (), ("stock", ["light"], True), id="the light one does not compile"),
        pytest.param(
            USES_LIGHT + "\n#ifdef STOCK_MACRO\nint g();\n#endif", (), ("stock", [], True), id="a macro of the other"
        ),
        pytest.param(USES_LIGHT, ("-O2",), ("stock", ["light"], True), id="there is none for what is optimised"),
        pytest.param("int f() { return 3; }", (), ("stock", [], True), id="no header"),
    ],
)
def test_the_light_header_is_taken_where_it_will_do(plan, tmp_path, text, more, way):
    done = compile_text(plan, tmp_path, text, *more)
    assert (done.returncode, done.stdout) == (0, "")
    assert ways(plan) == [way]


def test_an_object_with_the_light_header_is_linked_with_what_belongs_to_it(plan, tmp_path):
    assert compile_text(plan, tmp_path, USES_LIGHT.replace("light_name", "use_glue()")).returncode == 0
    assert (
        run(plan, str(tmp_path / "main.o"), "-shared", "-Wl,--no-undefined", "-o", str(tmp_path / "a.so")).returncode
        == 0
    )
    assert (tmp_path / "main.o.glue").read_text().split() == [f"{plan['light']}/plain/factories.o"]


def test_objects_of_two_levels_of_optimisation_are_linked_with_it_once(plan, tmp_path):
    plain = Path(plan["light"], "plain")
    shutil.copytree(plain, plain.with_name("optimised"))
    for number, more in enumerate([(), ("-O2",)]):
        text = USES_LIGHT.replace("f() { return light_name;", f"f{number}() {{ return use_glue();")
        assert compile_text(plan, tmp_path, text, *more).returncode == 0
        for name in ("main.o", "main.o.glue"):
            (tmp_path / name).rename(tmp_path / name.replace("main", f"part{number}"))
    objects = [str(tmp_path / f"part{number}.o") for number in range(2)]
    done = run(plan, *objects, "-shared", "-Wl,--no-undefined", "-o", str(tmp_path / "a.so"))
    assert done.returncode == 0, done.stdout


def test_a_program_is_linked_with_it_too(plan, tmp_path):
    text = USES_LIGHT.replace("int f() { return light_name; }", "int main() { return use_glue() - 7; }")
    assert compile_text(plan, tmp_path, text).returncode == 0
    assert run(plan, str(tmp_path / "main.o"), "-o", str(tmp_path / "program")).returncode == 0
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0


def test_what_torch_binds_is_linked_with_what_stands_in_for_pybind11(plan, tmp_path):
    assert compile_text(plan, tmp_path, BOUND).returncode == 0
    assert "/plain/binding.o" in (tmp_path / "main.o.glue").read_text()


def test_an_object_that_was_compiled_another_way_since_is_linked_with_nothing_more(plan, tmp_path):
    compile_text(plan, tmp_path, USES_LIGHT)
    compile_text(plan, tmp_path, USES_STOCK)
    assert not (tmp_path / "main.o.glue").exists()


@pytest.mark.parametrize(
    ("text", "way"),
    [
        (WRONG, ("light", [], False)),
        (USES_LIGHT.replace("light_name;", 'light_name + "" - 1.0;'), ("stock", ["light"], False)),
    ],
    ids=["what no header declares", "an error of another kind"],
)
def test_an_error_is_reported_once_by_the_light_header_where_no_other_would_help(plan, tmp_path, text, way):
    done = compile_text(plan, tmp_path, text)
    assert (done.returncode, done.stdout.count("error: "), ways(plan)) == (1, 1, [way])


def test_what_is_being_made_is_waited_for(plan, tmp_path):
    made, later = Path(plan["light"], "plain", "factories.o"), tmp_path / "later.o"
    mark = made.with_name(f"{compiling.MAKING}factories.o")
    made.rename(later)
    with mark.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = 'while [ ! -s "$0" ]; do sleep 0.1; done; sleep 0.5; mv "$1" "$2"; rm "$3"'
        maker = subprocess.Popen(["sh", "-c", words, tmp_path / "main.o", later, made, mark])
        assert compile_text(plan, tmp_path, USES_LIGHT).returncode == 0
    assert (maker.wait(), ways(plan)) == (0, [("light", [], True)])


def test_what_a_process_was_making_that_has_ended_is_not_waited_for(plan, tmp_path):
    made = Path(plan["light"], "plain", "factories.o")
    made.rename(made.with_name(f"{compiling.MAKING}factories.o"))
    assert compile_text(plan, tmp_path, USES_LIGHT).returncode == 0
    assert ways(plan) == [("stock", ["light"], True)]


def test_a_plan_without_a_light_header_takes_the_stock_one_at_once(plan, tmp_path):
    assert compile_text(plan | {"light": ""}, tmp_path, USES_LIGHT).returncode == 0
    assert ways(plan) == [("stock", [], True)]


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


def test_what_ptxas_says_of_kernels_is_kept_beside_the_extension_and_not_printed(plan, tmp_path):
    nvcc = tmp_path / "nvcc"
    said = "ptxas info    : Used 8 registers\\n    0 bytes stack frame, 0 bytes spill stores\\nfile.cu(3): a warning"
    nvcc.write_text(f"#!/bin/sh\ncase \"$*\" in *-Xptxas=-v*) printf '{said}\\n';; esac\n")
    nvcc.chmod(0o755)
    (tmp_path / "file.cu").write_text("__global__ void f() {}")
    environment = os.environ | {"KERNELWRIGHT_SHORTCUTS": json.dumps(plan | {"nvcc": str(nvcc), "light": ""})}
    words = [sys.executable, "-c", CALL, "nvcc", "-c", "file.cu", "-o", "file.o"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "file.cu(3): a warning\n"
    assert "8 registers" in (tmp_path / "ptxas.txt").read_text()


def test_without_a_plan_it_is_the_compiler_itself(tmp_path):
    assert run({}, "-dumpversion").stdout == subprocess.check_output(["c++", "-dumpversion"], text=True)


def test_a_compiler_that_is_killed_over_a_header_is_called_with_the_other(plan, tmp_path):
    compiler = tmp_path / "killed"
    compiler.write_text('#!/bin/sh\ncase "$*" in *kernelwright*|*light-*) kill -9 $$;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    assert compile_text(plan | {"cxx": str(compiler)}, tmp_path, USES_LIGHT).returncode == 0
    assert ways(plan) == [("stock", ["light"], True)]


TORCHS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20", "-DTORCH_EXTENSION_NAME=ext"]


ORDINARY = [
    "-MMD -MF main.o.d -c main.cpp -o main.o",
    "-O3 -march=native -fopenmp -ffast-math -funroll-loops",
    "-Wall -Werror -DFACTOR=3 -D NDEBUG -lm -g",
    "--use_fast_math -gencode=arch=compute_90,code=sm_90 --compiler-options -fPIC",
    '-DPYBIND11_COMPILER_TYPE="_gcc"',
]
CHANGING = [
    *("@file", "-include other.h", "-x c", "-m32", "-fpack-struct", "-fshort-enums", "-D_GLIBCXX_USE_CXX11_ABI=0"),
    *("-D _GLIBCXX_DEBUG", "-DAT_PER_OPERATOR_HEADERS", "-DTORCH_STABLE_ONLY", "-UC10_MOBILE"),
]


@pytest.mark.parametrize("words", [*ORDINARY, *CHANGING])
def test_flags_that_change_layouts_or_what_torchs_headers_say_forbid_the_light_header(words):
    assert compiling.allow_light([*TORCHS, *words.split()]) == (words in ORDINARY)


def test_an_include_folder_with_headers_of_torchs_names_forbids_it(tmp_path):
    assert compiling.allow_light([*TORCHS, f"-I{tmp_path}"])
    (tmp_path / "torch").mkdir()
    assert not compiling.allow_light([*TORCHS, f"-I{tmp_path}"])
    assert not compiling.allow_light([*TORCHS, "-isystem", str(tmp_path)])
    assert compiling.allow_light([*TORCHS, "-isystem", str(tmp_path)], (str(tmp_path),))


@pytest.mark.parametrize(
    ("words", "whether"), [(["-O3"], True), (["-O0"], False), (["-O2", "-O0"], False), ([], False)]
)
def test_the_last_word_on_optimisation_decides(words, whether):
    assert compiling.are_optimised(words) is whether


RUN = "#include <torch/extension.h>\ntorch::Tensor run(torch::Tensor x) { return torch::relu(x); }\n"
BOUND_BY_TORCH = (
    RUN + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\nm.def("run", torch::wrap_pybind_function(run), "run");\n}\n'
)
BINDS_ITSELF = RUN + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, py::arg("x")); }\n'


@pytest.fixture
def header(tmp_path):
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    for name in ("relu", "gelu", "relu_native"):
        (tmp_path / "ATen" / "ops" / f"{name}.h").touch()
    return lambda text: compiling.header_for(text, str(tmp_path), frozenset({"TORCH_LIBRARY", "PYBIND11_TYPE_CASTER"}))


def test_the_operators_that_a_source_names_are_in_its_header_and_no_others(header):
    text = header(RUN + "// relu_native")
    assert "<ATen/ops/relu.h>" in text
    assert "gelu" not in text and "native" not in text and "pybind" not in text


def test_what_torch_binds_gets_what_stands_in_for_pybind11_and_what_binds_itself_gets_pybind11(header):
    assert "kernelwright/module.h" in header(BOUND_BY_TORCH) and "pybind" not in header(BOUND_BY_TORCH)
    assert compiling.glue_of(BOUND_BY_TORCH) == ("binding.o", "factories.o")
    assert "torch/csrc/utils/pybind.h" in header(BINDS_ITSELF) and "module.h" not in header(BINDS_ITSELF)
    assert compiling.glue_of(BINDS_ITSELF) == ()


def test_a_kernel_of_cuda_as_load_inline_writes_it_gets_one(header):
    source = "#include <torch/types.h>\n#include <cuda.h>\n" + RUN + "__global__ void k() {}"
    assert header(source) is not None
    assert compiling.glue_of(source) == ("factories.o",)


ALIASES = ["using namespace std;", "namespace py = pybind11;", "using namespace torch::indexing;"]
LACKING = [
    *("torch::nn::Linear l(1, 2);", "namespace torch { int own; }", "using namespace at;", "TORCH_LIBRARY(x, m) {}"),
    *("#ifdef TORCH_LIBRARY\n#endif", '#include "own.h"', "#include OWN", "int KERNELWRIGHT_INSIDE;"),
]


@pytest.mark.parametrize("more", [*LACKING, *ALIASES])
def test_what_the_light_header_lacks_or_could_clash_with_gets_the_stock_one_and_aliases_do_not(header, more):
    assert (header(RUN + more) is None) == (more in LACKING)


@pytest.mark.parametrize("text", ["#include <vector>\n" + RUN, "#define X\n" + RUN, "int a;"])
def test_what_the_light_header_can_not_see_gets_the_stock_one(header, text):
    assert header(text) is None


def test_many_comments_before_the_header_are_read_at_once(header):
    start = time.perf_counter()
    comments = "/* a */\n" * 20_000
    assert header(comments + RUN) is not None
    assert header(f"{comments}#include <vector>") is None
    assert header("/* never closed #include <torch/extension.h>") is None
    assert header("/**/ // one\n /* * ** */" + RUN) is not None
    assert time.perf_counter() - start < 5


WAIT = "while [ ! -e {} ]; do sleep 0.01; done"
PATIENCE_S = 300
"""Beyond this the test itself has gone wrong."""


@pytest.fixture
def built(tmp_path):
    """Runs ninja over one C++ and one CUDA file; its words, and which files the compilers left."""

    def build(cxx, nvcc):
        for name, body in (("cxx", cxx), ("nvcc", nvcc)):
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
            stand_in = tmp_path / f"{name}-stand-in"
            stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "{CALL}" {name} "$@"\n')
            stand_in.chmod(0o755)
        rules = "".join(
            f"rule {name}\n  command = {tmp_path}/{name}-stand-in -c $in -o $out\n" for name in ("cxx", "nvcc")
        )
        (tmp_path / "build.ninja").write_text(f"{rules}build main.o: cxx main.cpp\nbuild cuda.o: nvcc cuda.cu\n")
        for name in ("main.cpp", "cuda.cu"):
            (tmp_path / name).write_text("int f();")
        plan = {name: str(tmp_path / name) for name in ("cxx", "nvcc")}
        plan |= {"report": str(tmp_path / "report"), "known_folders": [], "light": "", "linker": ""}
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["ninja", "-v", "-j", "2"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            env=os.environ | {compiling.PLAN: json.dumps(plan), "PATH": tools},
        )  # fmt: skip
        assert done.returncode != 0
        return done.stdout, {path.name for path in tmp_path.iterdir()}

    return build


ENDLESS = f"touch started; sleep {2 * PATIENCE_S}; touch ended"


@pytest.mark.parametrize("failing", ["main.cpp", "cuda.cu"])
def test_a_compilation_that_fails_is_reported_and_ends_the_other_one(built, tmp_path, failing):
    wrong = f"{WAIT.format('started')}; echo 'error: it is wrong'; exit 1"
    words, left = built(*((wrong, ENDLESS) if failing == "main.cpp" else (ENDLESS, wrong)))
    assert "error: it is wrong" in words
    assert "interrupted" not in words
    assert "started" in left and "ended" not in left
    entries = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert {entry["file"]: entry["compiled"] for entry in entries}[failing] is False


def test_of_two_that_fail_at_once_one_is_heard(built):
    def wrong(mine, other):
        return f"touch {mine}; {WAIT.format(other)}; echo 'error: it is wrong'; exit 1"

    for _ in range(5):
        words, _ = built(wrong("one", "two"), wrong("two", "one"))
        assert "error: it is wrong" in words


def test_without_a_ninja_above_nothing_else_is_ended(tmp_path):
    beside = subprocess.Popen(["sleep", str(PATIENCE_S)])
    try:
        call = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        call += "from kernelwright_child.compiling import end_siblings"
        subprocess.run([sys.executable, "-c", f"{call}; end_siblings()"], cwd=tmp_path, check=True)
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()


STOCK_WORDS = frozenset({"forward", "stride"})
BEYOND = [
    "‘walk’ was not declared in this scope; did you mean ‘wait’?",
    "'no_such_thing' is not a member of 'torch'",
    "‘class at::Tensor’ has no member named ‘summ’",
    "‘Walk’ does not name a type",
    'identifier "walk" is undefined',
    'namespace "torch" has no member "empty_lik"',
    "expected ‘;’ before ‘}’ token",
    'expected a ";"',
    "no/such/header.h: No such file or directory",
]
OPEN = [
    "‘forward’ was not declared in this scope",
    'identifier "stride" is undefined',
    "no matching function for call to ‘run(int)’",
    "invalid use of incomplete type ‘struct torch::autograd::Node’",
    "no match for ‘operator<<’",
]


@pytest.mark.parametrize("error", [*BEYOND, *OPEN])
def test_only_what_more_declarations_could_mend_is_tried_again(error):
    assert compiling.is_unmendable(error, lambda: STOCK_WORDS) == (error in BEYOND)


@pytest.mark.parametrize(
    "said", ["main.cpp:4:1: error: words", "main.cpp(4): error: words", "main.cpp:4:1: fatal error: words"]
)
def test_the_first_error_counts_where_it_lies_in_the_source(said):
    told = f"In file included from x.h:1:\nmain.cpp: In function ‘f’:\n{said}\nmain.cpp:5:1: error: more"
    assert compiling.first_error(told, "main.cpp") == "words"
    assert compiling.first_error(f"x.h:3:2: error: first\n{said}", "main.cpp") is None
    assert compiling.first_error("killed", "main.cpp") is None


def test_words_in_strings_are_no_declarations():
    found = compiling.words_of('int a; const char* b = "walk \\" more"; int c;')
    assert found == {"int", "a", "const", "char", "b", "c"}


def test_only_the_includes_of_a_source_are_asked_about():
    source = "#include <a.h>\nint x;\n  # include <b/c.h> // why\n"
    first, _, second, *_ = source.split("\n")
    assert compiling.includes_of(source).split("\n")[:2] == [first, second]
