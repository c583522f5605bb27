"""The shelf of precompiled headers, with a compiler that writes nothing into whatever it is asked for."""

import os
from pathlib import Path

import pytest

from kernelwright.sandbox.build import HeaderShelf
from kernelwright.sandbox.build.build_record import Compilation
from kernelwright.sandbox.build.toolchain import Toolchain
from kernelwright.sandbox.judge.late_builds import learn
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
