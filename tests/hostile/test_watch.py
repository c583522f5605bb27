"""What the supervisor counts: everything that fills memory or disk, also what tries not to be seen."""

import os
import subprocess
import sys

import pytest

from kernelwright_child.supervisor import LONGEST_PATH, Watch, resident, size_on_disk

MIB = 2**20


def watch(folder, memory=None, folder_bytes=2**40):
    return Watch({"memory": memory, "folder": str(folder), "folder_bytes": folder_bytes})


@pytest.fixture
def process():
    """Starts a Python process that has run some code, and is told to end afterwards."""
    started = []

    def start(code):
        words = [sys.executable, "-I", "-S", "-c", f"import mmap, os\n{code}\nprint('ready', flush=True)\ninput()"]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_empty_files_count(tmp_path):
    for number in range(1000):
        (tmp_path / str(number)).touch()
    assert size_on_disk(str(tmp_path), 2**40) >= 1000 * 4096


def test_a_sparse_file_counts_only_what_it_takes(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    assert size_on_disk(str(tmp_path), 2**40) < MIB


def test_what_lies_too_deep_to_be_seen_counts_as_too_much(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(LONGEST_PATH // 100 + 1):
        os.mkdir("d" * 100, dir_fd=here)
        here = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
    assert size_on_disk(str(tmp_path), 2**40) > 2**40


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_closed_folder_counts_as_too_much(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    assert size_on_disk(str(tmp_path), 2**40) > 2**40


def test_a_file_without_a_name_counts_while_it_is_open(tmp_path, process):
    pid = process(
        f"file = open({str(tmp_path / 'x')!r}, 'wb'); os.unlink(file.name); file.write(bytes({4 * MIB})); file.flush()"
    )
    assert watch(tmp_path, folder_bytes=2 * MIB).thorough([pid]) == "folder"
    assert watch(tmp_path, folder_bytes=8 * MIB).thorough([pid]) == ""


def test_files_in_memory_count_as_memory(tmp_path, process):
    pid = process(f"os.write(os.memfd_create('x'), bytes({32 * MIB}))")
    assert watch(tmp_path, memory=16 * MIB).thorough([pid]) == "memory"
    assert watch(tmp_path, memory=64 * MIB).thorough([pid]) == ""


def test_shared_pages_count_as_memory(process):
    pid = process(f"shared = mmap.mmap(-1, {32 * MIB}); shared.write(b'x' * {32 * MIB})")
    assert resident(pid) > 32 * MIB


def test_memory_that_was_only_reserved_does_not_count(process):
    pid = process(f"shared = mmap.mmap(-1, {2**33}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
    assert resident(pid) < 64 * MIB


def test_memory_of_several_processes_is_added_up(tmp_path, process):
    pids = [process(f"held = b'x' * {32 * MIB}") for _ in range(2)]
    assert watch(tmp_path, memory=60 * MIB).quick(pids) == "memory"
    assert watch(tmp_path, memory=60 * MIB).quick(pids[:1]) == ""


def test_a_process_that_has_gone_is_no_error(tmp_path):
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert watch(tmp_path, memory=1).thorough([child.pid]) == ""
