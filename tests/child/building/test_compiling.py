"""The stand-in for the compiler, with headers of one line in place of torch's."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright_child import compiling

ROOT = Path(__file__).parents[3]
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
        path = tmp_path / ("shelf" if name in texts else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    glue = tmp_path / "shelf" / "plain"
    glue.mkdir()
    for name, text in {"factories": "int glue() { return 7; }", "binding": "int bound;"}.items():
        (glue / f"{name}.cpp").write_text(text)
        subprocess.run(["g++", "-fPIC", "-c", glue / f"{name}.cpp", "-o", glue / f"{name}.o"], check=True)
    return {
        "cxx": "g++",
        "linker": "",
        "light": str(tmp_path / "shelf"),
        "torch_include": str(tmp_path / "torch"),
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


def ways(plan):
    return [(entry["way"], entry["failed"], entry["compiled"]) for entry in told(plan)]


@pytest.mark.parametrize(
    ("text", "more", "way"),
    [
        (USES_LIGHT, (), ("light", [], True)),
        (USES_STOCK, (), ("stock", ["light"], True)),
        (USES_LIGHT + "\n#ifdef STOCK_MACRO\nint g();\n#endif", (), ("stock", [], True)),
        (USES_LIGHT, ("-O2",), ("stock", ["light"], True)),  # there is none for what is optimised
        ("int f() { return 3; }", (), ("stock", [], True)),
    ],
    ids=[
        "the light header will do",
        "the light one does not compile",
        "a macro of the stock header alone",
        "what belongs to the light header is missing",
        "no header",
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


def test_what_no_header_declares_is_compiled_once_and_told(plan, tmp_path):
    done = compile_text(plan, tmp_path, WRONG)
    assert (done.returncode, done.stdout.count("error: ")) == (1, 1)
    assert ways(plan) == [("light", [], False)]


def test_an_error_of_another_kind_is_told_in_the_words_of_the_stock_header(plan, tmp_path):
    done = compile_text(plan, tmp_path, USES_LIGHT.replace("light_name;", 'light_name + "" - 1.0;'))
    assert done.returncode == 1
    assert ways(plan) == [("stock", ["light"], False)]


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


def test_without_a_plan_it_is_the_compiler_itself(tmp_path):
    assert run({}, "-dumpversion").stdout == subprocess.check_output(["c++", "-dumpversion"], text=True)


def test_a_compiler_that_is_killed_over_a_header_is_called_with_the_other(plan, tmp_path):
    compiler = tmp_path / "killed"
    compiler.write_text('#!/bin/sh\ncase "$*" in *kernelwright*|*light-*) kill -9 $$;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    assert compile_text(plan | {"cxx": str(compiler)}, tmp_path, USES_LIGHT).returncode == 0
    assert ways(plan) == [("stock", ["light"], True)]
