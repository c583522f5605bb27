"""Two compilations below one ninja, by the stand-ins, with programs of a few lines in place of the compilers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright_child import compiling

ROOT = Path(__file__).parents[3]
STAND_IN = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kernelwright_child.compiling import main; main(sys.argv[1:])"
)
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
            stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "{STAND_IN}" {name} "$@"\n')
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


@pytest.mark.parametrize("failing", ["cxx", "nvcc"])
def test_a_compilation_that_fails_ends_the_other_one(built, failing):
    wrong = f"{WAIT.format('started')}; echo 'error: it is wrong'; exit 1"
    words, left = built(*((wrong, ENDLESS) if failing == "cxx" else (ENDLESS, wrong)))
    assert "error: it is wrong" in words
    assert "interrupted" not in words
    assert "started" in left and "ended" not in left


def test_of_two_that_fail_at_once_one_is_heard(built):
    def wrong(mine, other):
        return f"touch {mine}; {WAIT.format(other)}; echo 'error: it is wrong'; exit 1"

    for _ in range(5):
        words, _ = built(wrong("one", "two"), wrong("two", "one"))
        assert "error: it is wrong" in words


def test_a_compilation_that_fails_is_told_as_such(built, tmp_path):
    built("exit 1", "exit 0")
    entries = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert {entry["file"]: entry["compiled"] for entry in entries}["main.cpp"] is False


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
