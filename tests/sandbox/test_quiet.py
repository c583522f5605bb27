"""The processors are measured once, and never while something is timed on them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sandbox.errors import MachineError
from sandbox.quiet import measuring, timing

ROOT = Path(__file__).parent.parent.parent
WANTS_PEAKS = "from sandbox.floor.processor import processor_peaks; print(processor_peaks(1).model_dump_json())"


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    """Locks of the test alone: other tests may be timing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_nothing_is_measured_while_something_is_timed():
    with timing(), pytest.raises(MachineError, match="another judge of this machine"), measuring(wait_s=0):
        pass
    with measuring(wait_s=0):
        pass


def test_many_may_time_at_once():
    with timing(), timing():
        pass


def test_nothing_is_measured_twice_at_once():
    with measuring(), pytest.raises(MachineError), measuring(wait_s=0):
        pass


def test_who_comes_to_time_waits_for_the_measurement():
    order = []

    def time_something():
        with timing():
            order.append("timed")

    with measuring():
        other = threading.Thread(target=time_something)
        other.start()
        other.join(0.2)
        order.append("measured")
    other.join()
    assert order == ["measured", "timed"]


@pytest.mark.long
@pytest.mark.slow
def test_of_two_processes_that_want_the_peaks_one_measures(tmp_path):
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    environment = os.environ | {
        "CXX": str(compiler),
        "KERNELWRIGHT_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-c", WANTS_PEAKS]
    both = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0] for process in both)
    assert first == second != ""
    assert sum("measure.cpp" in line for line in log.read_text().splitlines()) == 1
