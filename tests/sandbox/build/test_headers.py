"""The shelf of precompiled headers, with a compiler that writes nothing into whatever it is asked for."""

import fcntl
import logging
import os
from pathlib import Path

import pytest

from kernelwright.sandbox.build import HeaderShelf
from kernelwright.sandbox.build.build_record import Compilation
from kernelwright.sandbox.build.toolchain import Toolchain
from kernelwright.sandbox.judge.candidate_builds import learn
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.verdict.verdicts import Candidate

COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then head -c 1000 /dev/zero > "$2"; fi
    shift
done
"""
FLAGS = ("-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20")


@pytest.fixture
def toolchain_of(tmp_path):
    """A toolchain by its digest, all in one cache."""
    compiler, include = tmp_path / "g++", tmp_path / "torch" / "include"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    (include.parent / "utils").mkdir(parents=True)
    (include.parent / "utils" / "cpp_extension.py").write_text("'-std=c++20'")

    def made(digest):
        return Toolchain(str(compiler), True, None, "", include, digest, tmp_path / "toolchains" / digest)

    return made


def test_a_header_is_made_when_it_would_have_been_used_for_the_second_time(toolchain_of):
    shelf = HeaderShelf(toolchain_of("a"))
    wanted = Compilation(extension="x", file="main.cpp", way="stock", seconds=20, flags=FLAGS, header="lean")
    shelf.learn([wanted, wanted])
    assert not shelf.has(FLAGS, "lean")
    shelf.learn([wanted])
    assert shelf.has(FLAGS, "lean") and not shelf.has(FLAGS, "narrow")


def test_the_time_of_making_a_header_is_booked_apart_from_the_candidates_build(toolchain_of):
    shelf, built = HeaderShelf(toolchain_of("a")), Built(Candidate(source=""))
    wanted = (Compilation(extension="x", file="main.cpp", way="stock", seconds=20, flags=FLAGS, header="lean"),)
    try:
        for _ in range(2):
            assert built.seconds == {}
            learn(built, shelf, wanted)
        assert list(built.seconds) == ["headers"]
    finally:
        built.close()


def test_a_lean_header_comes_with_what_its_sources_are_linked_with(toolchain_of):
    found = toolchain_of("a")
    assert HeaderShelf(found).prepare()
    (binding,) = found.folder.rglob("binding.o")
    assert (binding.parent / "torch" / "extension.h.gch").exists()
    assert '#include "../binding/module.h"' in (binding.parent / "torch" / "extension.h").read_text()


def test_what_a_toolchain_of_before_has_left_counts_and_goes_first(toolchain_of):
    former, present = HeaderShelf(toolchain_of("former")), HeaderShelf(toolchain_of("present"))
    assert former.prepare((), "whole")
    for path in toolchain_of("former").folder.rglob("entry.json"):
        os.utime(path.parent, (0, 0))
    assert present.size_bytes() == former.size_bytes() > 1000
    limited = HeaderShelf(toolchain_of("present"), limit_bytes=present.size_bytes() + 1000)
    assert limited.prepare((), "whole")
    assert limited.has(FLAGS, "whole") and not former.has(FLAGS, "whole")


def test_a_compiler_that_fails_makes_no_header(toolchain_of):
    found = toolchain_of("a")
    Path(found.compiler).write_text("#!/bin/sh\nexit 1\n")
    assert not HeaderShelf(found).prepare()
    assert not list(found.folder.rglob("entry.json"))


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "kernelwright.sandbox.build")
    return caplog


def test_why_a_compiler_made_no_header_is_logged_in_its_words(toolchain_of, logged):
    found = toolchain_of("a")
    Path(found.compiler).write_text("#!/bin/sh\necho 'x.h:1: error: no such thing' >&2\nexit 1\n")
    HeaderShelf(found).prepare()
    (said,) = logged.messages
    assert said.startswith("the lean header for ") and said.endswith("was not made: x.h:1: error: no such thing")


def test_that_a_compiler_makes_no_headers_is_logged(toolchain_of, logged):
    found = toolchain_of("a")._replace(is_gcc=False)
    HeaderShelf(found).prepare((), "narrow")
    assert logged.messages == [f"no narrow header is made: {found.compiler} is not GCC"]


def test_flags_for_which_no_header_is_made_are_logged(toolchain_of, logged):
    HeaderShelf(toolchain_of("a")).prepare(("-fplugin=x.so",))
    assert logged.messages == ["no lean header is made for flags that may name a file or a program: -fplugin=x.so"]


def test_that_another_process_makes_the_header_is_logged(toolchain_of, logged):
    shelf = HeaderShelf(toolchain_of("a"))
    assert shelf.prepare() and not logged.messages
    (lock,) = toolchain_of("a").folder.rglob(".lock-*lean*")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shelf.prepare()
    assert logged.messages == ["the lean header is not made here: another process is making it"]
