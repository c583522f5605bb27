"""The making of the light header, with a compiler that writes nothing into whatever it is asked for."""

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.stages import Built, header_made
from kernelwright.sandbox.storage import VARIABLE, all_entries
from kernelwright.sandbox.toolchain import (
    EVERYTHING,
    MakingHeaders,
    Toolchain,
    headers_are_ready,
    missing_headers,
    prepare_headers,
    require_headers,
    toolchain,
)
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate
from kernelwright_child.compiling import MAKING
from tests.sandbox.conftest import SCALED_ROWS
from tests.support.commands import clean_environment
from tests.support.processes import ordinary_user

COMPILER = """#!/bin/sh
case "$*" in *core.h*) echo '#define BOTH 1';; *-dM*) echo '#define BOTH 1'; echo '#define MORE(x) x';; esac
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then echo made > "$2"; fi
    if [ "$1" = -MF ]; then echo "a: /usr/include/c++/12/cmath /usr/include/c++/12/bits/x.h" > "$2"; fi
    shift
done
"""
PLAIN = 'load_inline("m", cpp_sources=S, functions=["f"])'


@pytest.fixture
def tools(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    compiler, include = tmp_path / "g++", tmp_path / "torch" / "include"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    (include.parent / "utils").mkdir(parents=True)
    (include.parent / "utils" / "cpp_extension.py").write_text("'-std=c++20'")
    return Toolchain(str(compiler), True, None, "", include, "a", tmp_path / "cache" / "toolchains" / "a")


def test_the_header_brings_what_the_stock_one_brings_and_notes_the_macros_that_only_that_one_defines(tools):
    assert prepare_headers(tools)
    assert (tools.light / "light" / "kernelwright" / "standard.h").read_text() == "#include <cmath>\n"
    assert (tools.light / "macros").read_text() == "MORE"


def test_a_folder_of_headers_that_is_closed_to_this_user_has_nothing(tools):
    assert prepare_headers(tools)
    folder = tools.folder.parent
    folder.chmod(0)
    try:
        with ordinary_user():
            assert not headers_are_ready(tools) and missing_headers(tools, PLAIN)
    finally:
        folder.chmod(0o755)
    assert headers_are_ready(tools)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (PLAIN, {"macros", "plain/binding.o", "plain/factories.o"}),
        (PLAIN + ' extra_cflags=["-O3"]', {"macros", "optimised/binding.o", "optimised/factories.o"}),
        (PLAIN + ' extra_cflags=["-O0"]', {"macros", "plain/binding.o", "plain/factories.o"}),
        (PLAIN + ' cuda_sources=C, extra_cuda_cflags=["-O3"]', set(EVERYTHING)),
        ('load("m", [F])  # torch/extension.h', {"macros", "plain/factories.o"}),
        (PLAIN + " no_implicit_headers=True", set()),
        (PLAIN + " no_implicit_headers=True  # torch/extension.h", {"macros", "plain/binding.o", "plain/factories.o"}),
        ("import triton", set()),
    ],
)
def test_only_what_a_candidate_may_need_is_missing(tools, source, names):
    assert set(missing_headers(tools, source)) == names


def test_once_it_is_made_nothing_is_missing_whatever_the_flags(tools):
    assert prepare_headers(tools) and headers_are_ready(tools)
    for flags in ("", ' extra_cflags=["-O3", "-march=native"]'):
        assert missing_headers(tools, PLAIN + flags) == []


def test_what_is_made_beside_a_build_that_fails_is_made_to_its_end_and_its_time_is_booked_apart(tools):
    compiler, gate = Path(tools.compiler), Path(tools.compiler).with_name("gate")
    compiler.write_text(f"{COMPILER}while [ ! -e {gate} ]; do sleep 0.05; done\n")
    with closing(Built(Candidate(source=PLAIN), backend_of(JudgeSettings()))) as built:
        with pytest.raises(StageFailed), header_made(built, tools) as is_going_on:
            assert (tools.light / "plain" / f"{MAKING}binding.o").exists() and is_going_on()
            gate.touch()
            raise StageFailed("build", "no answer")
        assert list(built.seconds) == ["headers"] and not is_going_on()
        assert missing_headers(tools, PLAIN) == []


def test_what_is_made_when_the_user_ends_it_is_given_up_with_all_that_the_compiler_has_started(
    tools, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    Path(tools.compiler).write_text(f'#!/bin/sh\necho > "$TMPDIR/cc1.s"\ntouch {tmp_path}/begun\nsleep 600\n')
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), MakingHeaders(tools, ["plain/binding.o"]):
        while not (tmp_path / "begun").exists():
            time.sleep(0.02)
        assert [path.name for path in (tmp_path / "temporary").rglob("*.s")] == ["cc1.s"]
        raise KeyboardInterrupt
    assert time.perf_counter() - start < 200
    assert [path.name for path in (tools.light / "plain").iterdir()] == []
    assert not any((tmp_path / "temporary").iterdir())


def test_a_build_for_which_nothing_is_missing_books_nothing(tools):
    prepare_headers(tools)
    with closing(Built(Candidate(source=PLAIN), backend_of(JudgeSettings()))) as built:
        with header_made(built, tools):
            pass
        assert built.seconds == {}


def test_it_counts_among_all_that_is_kept_and_goes_first_when_it_is_the_longest_unused(tools, monkeypatch):
    prepare_headers(tools)
    assert all_entries().size_bytes() > 0
    os.utime(tools.light, (0, 0))
    monkeypatch.setenv("KERNELWRIGHT_CACHE_GIB", "0")
    all_entries().trim()
    assert not tools.light.exists()


def test_a_compiler_that_is_not_gcc_or_fails_makes_nothing_and_its_words_are_logged(tools, logged):
    assert not prepare_headers(tools._replace(is_gcc=False))
    Path(tools.compiler).write_text("#!/bin/sh\necho 'x.h:1: error: no such thing' >&2\nexit 1\n")
    assert not prepare_headers(tools)
    assert "plain/binding.o" in logged.text and "x.h:1: error: " in logged.text
    assert not [path for path in tools.light.rglob("*.o*")]


def test_what_another_process_makes_is_left_to_it(tools, logged):
    mark = tools.light / "plain" / f"{MAKING}binding.o"
    mark.parent.mkdir(parents=True)
    with mark.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        prepare_headers(tools)
    (message,) = logged.messages
    assert message.startswith("plain/binding.o ") and "another process" in message
    assert not headers_are_ready(tools) and mark.exists()


LIBRARY_ALONE = "load_inline(name='a', cpp_sources=[S], no_implicit_headers=True, is_python_module=False)"
WANTING = {
    "load_inline by itself": "ext = load_inline(name='a', cpp_sources=[S], functions=['f'])",
    "torch's header": f'S = "#include <torch/extension.h>"\n{LIBRARY_ALONE}',
    "pybind's header": f'S = "# include <pybind11/pybind11.h>"\n{LIBRARY_ALONE}',
    "Triton's launcher": "import triton\nimport triton.language as tl",
    "Triton's launcher under Helion": "import helion\nimport helion.language as hl",
}


@pytest.mark.parametrize("source", WANTING.values(), ids=WANTING)
def test_a_candidate_that_needs_the_missing_header_is_told_what_to_install(tmp_path, source):
    with pytest.raises(MachineError, match=r"Python\.h; .*apt-get install"):
        require_headers(source, tmp_path / "Python.h")


def test_nothing_is_refused_where_no_header_is_needed_or_it_is_there(tmp_path):
    for source in (LIBRARY_ALONE, "import torch\nclass ModelNew: pass"):
        require_headers(source, tmp_path / "Python.h")
    (tmp_path / "Python.h").touch()
    for source in WANTING.values():
        require_headers(source, tmp_path / "Python.h")


@pytest.mark.slow
def test_what_a_light_torch_header_hides_is_noted_and_what_it_brings_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    toolchain.cache_clear()
    try:
        tools = toolchain()
        if tools is None or not tools.is_gcc:
            pytest.skip("the light header is made for g++, and the C++ compiler here is another")
        with MakingHeaders(tools, ["macros"]):
            pass
        lacking = set((tools.light / "macros").read_text().split())
    finally:
        toolchain.cache_clear()
    assert {"TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT"} <= lacking
    assert not lacking & {"TORCH_CHECK", "AT_DISPATCH_FLOATING_TYPES", "PYBIND11_MODULE", "TORCH_EXTENSION_NAME"}


TOP = """
from torch.utils.cpp_extension import load_inline
SOURCE = '''
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x, torch::Tensor w) { return torch::cumsum(x * w, 1); }
'''
built = load_inline(name="scaled_rows", cpp_sources=SOURCE, functions=["scaled"])
"""
FORWARD = "torch.cumsum(x * self.weight, dim=1)"


@pytest.mark.slow
@pytest.mark.long
def test_a_right_candidate_passes_on_a_busy_core_that_makes_the_header_meanwhile(tmp_path):
    """The judge has one core, another program computes on it, and nothing was made before."""
    (tmp_path / "problem.py").write_text(SCALED_ROWS.source)
    model = SCALED_ROWS.source.replace("Model(", "ModelNew(").replace(FORWARD, "built.scaled(x, self.weight)")
    (tmp_path / "candidate.py").write_text(TOP + model)
    temporary, core = tmp_path / "temporary", str(min(os.sched_getaffinity(0)))
    temporary.mkdir()
    words = ["judge", "problem.py", "candidate.py", "--effort", "screen", "--json"]
    command = ["taskset", "-c", core, sys.executable, "-P", "-m", "kernelwright", *words]
    environment = clean_environment(TMPDIR=str(temporary), **{VARIABLE: str(tmp_path / "cache")})
    busy = subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"])
    try:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    finally:
        busy.kill()
        busy.wait()
    found = json.loads(done.stdout)
    assert found["outcome"] == "passed" and found["seconds"]["headers"] > 0, found
    assert "load" in done.stderr
    assert all(path.suffix == ".turn" for path in temporary.rglob("*"))
