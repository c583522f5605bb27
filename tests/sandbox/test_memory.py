import pytest

from kernelwright.sandbox.machine import child_limit_bytes, free_bytes, gib, machine_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("files", "gibs"),
    [
        ({"unrelated": ""}, (64, 48)),
        ({"proc/self/cgroup": ""}, (64, 48)),
        (
            {
                "proc/self/cgroup": "0::/inner/most",
                "sys/fs/cgroup/inner/most/memory.max": 8 * GIB,
                "sys/fs/cgroup/inner/most/memory.current": 5 * GIB,
                "sys/fs/cgroup/inner/most/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 7",
            },
            (8, 5),
        ),
        (
            {
                "proc/self/cgroup": "0::/outer/inner",
                "sys/fs/cgroup/outer/inner/memory.max": "max",
                "sys/fs/cgroup/outer/inner/memory.current": GIB,
                "sys/fs/cgroup/outer/memory.max": 4 * GIB,
                "sys/fs/cgroup/outer/memory.current": 3 * GIB,
            },
            (4, 1),
        ),
        (
            {
                "proc/self/cgroup": "0::/docker/0123abcd",
                "sys/fs/cgroup/memory.max": 2 * GIB,
                "sys/fs/cgroup/memory.current": GIB,
            },
            (2, 1),
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/jobs/7\n0::/",
                "sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes": 6 * GIB,
                "sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes": 4 * GIB,
                "sys/fs/cgroup/memory/jobs/7/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
            },
            (6, 3),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 4 * GIB,
            },
            (64, 48),
        ),
        (
            {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GIB, "sys/fs/cgroup/memory.current": 2 * GIB},
            (1, 0),
        ),
    ],
    ids=["not told of", "none", "version 2", "around ours", "not there", "version 1", "no limit", "never below nought"],
)
def test_control_groups_bound_the_machine_and_what_is_free(tmp_path, files, gibs):
    """A machine of 64 GiB with 48 GiB free, as its kernel tells of it; what files are kept of is given back at once."""
    meminfo = f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {48 * 2**20} kB"
    for path, text in {"proc/meminfo": meminfo, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n" if text else "")
    assert (machine_bytes(tmp_path) / GIB, free_bytes(tmp_path) / GIB) == gibs


def test_a_child_is_left_less_than_the_whole_of_this_machine():
    assert 0 < child_limit_bytes() < machine_bytes()
    assert 0 <= free_bytes() <= machine_bytes()


@pytest.mark.parametrize(("count", "said"), [(3 * GIB, "3 GiB"), (1.5 * GIB, "1.5 GiB"), (2**29, "512 MiB")])
def test_sizes_are_told_in_the_unit_that_fits(count, said):
    assert gib(count) == said
