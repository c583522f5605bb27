"""How much memory there is: the machine's, or what the control groups around this process leave of it."""

import pytest

from kernelwright.sandbox.verdict.memory import child_limit_bytes, free_bytes, gib, machine_bytes

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """A machine of 64 GiB with 48 GiB free, as its kernel tells of it; and a way to write more files of it."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {48 * 2**20} kB\n")
    return write


def test_without_control_groups_all_of_the_machine_may_be_used(machine):
    root = machine("proc/self/cgroup", "")
    assert (machine_bytes(root), free_bytes(root)) == (64 * GIB, 48 * GIB)


def test_a_machine_that_tells_of_no_control_groups_is_as_large_as_it_says(machine):
    root = machine("unrelated", "")
    assert (machine_bytes(root), free_bytes(root)) == (64 * GIB, 48 * GIB)


def test_a_group_of_version_2_bounds_what_may_be_used(machine):
    machine("proc/self/cgroup", "0::/inner/most\n")
    machine("sys/fs/cgroup/inner/most/memory.max", f"{8 * GIB}\n")
    machine("sys/fs/cgroup/inner/most/memory.current", f"{5 * GIB}\n")
    root = machine("sys/fs/cgroup/inner/most/memory.stat", f"anon 1\ninactive_file {2 * GIB}\nactive_file 7\n")
    assert machine_bytes(root) == 8 * GIB
    assert free_bytes(root) == 5 * GIB, "what files are kept of is given back at once"


def test_a_group_around_ours_bounds_it_too(machine):
    machine("proc/self/cgroup", "0::/outer/inner\n")
    machine("sys/fs/cgroup/outer/inner/memory.max", "max\n")
    machine("sys/fs/cgroup/outer/inner/memory.current", f"{1 * GIB}\n")
    machine("sys/fs/cgroup/outer/memory.max", f"{4 * GIB}\n")
    root = machine("sys/fs/cgroup/outer/memory.current", f"{3 * GIB}\n")
    assert (machine_bytes(root), free_bytes(root)) == (4 * GIB, 1 * GIB)


def test_where_the_named_group_is_not_there_the_root_stands_for_it(machine):
    machine("proc/self/cgroup", "0::/docker/0123abcd\n")
    machine("sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    root = machine("sys/fs/cgroup/memory.current", f"{1 * GIB}\n")
    assert (machine_bytes(root), free_bytes(root)) == (2 * GIB, 1 * GIB)


def test_a_group_of_version_1_bounds_what_may_be_used(machine):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/jobs/7\n0::/\n")
    machine("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", f"{6 * GIB}\n")
    machine("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", f"{4 * GIB}\n")
    root = machine("sys/fs/cgroup/memory/jobs/7/memory.stat", f"inactive_file 5\ntotal_inactive_file {1 * GIB}\n")
    assert (machine_bytes(root), free_bytes(root)) == (6 * GIB, 3 * GIB)


def test_a_group_of_version_1_without_a_limit_bounds_nothing(machine):
    machine("proc/self/cgroup", "4:memory:/\n")
    machine("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    root = machine("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{4 * GIB}\n")
    assert (machine_bytes(root), free_bytes(root)) == (64 * GIB, 48 * GIB)


def test_less_than_nothing_is_never_free(machine):
    machine("proc/self/cgroup", "0::/\n")
    machine("sys/fs/cgroup/memory.max", f"{1 * GIB}\n")
    root = machine("sys/fs/cgroup/memory.current", f"{2 * GIB}\n")
    assert free_bytes(root) == 0


def test_a_child_is_left_less_than_the_whole_of_this_machine():
    assert 0 < child_limit_bytes() < machine_bytes()
    assert 0 <= free_bytes() <= machine_bytes()


@pytest.mark.parametrize(("count", "said"), [(3 * GIB, "3 GiB"), (1.5 * GIB, "1.5 GiB"), (2**29, "512 MiB")])
def test_sizes_are_told_in_the_unit_that_fits(count, said):
    assert gib(count) == said
