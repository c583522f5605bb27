import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.storage import (
    Bounds,
    Cache,
    FolderStore,
    Store,
    all_entries,
    cache_root,
    is_full,
    is_there,
    is_writable,
    limit_bytes,
    limit_fault,
    state_root,
)
from tests.support.processes import ordinary_user

ROOT = Path(__file__).parents[2]


def fill(cache, name, size):
    with cache.making(name) as folder:
        (folder / "content").write_bytes(bytes(size))
        (folder / "entry.json").write_text("{}")


def test_the_cache_and_the_state_lie_where_the_user_says_or_where_those_of_users_lie(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/the/user")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", "/somewhere/else")
    assert cache_root() == Path("/somewhere/else")
    assert state_root() == Path("/home/of/the/user/.local/state/kernelwright")
    monkeypatch.delenv("KERNELWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/user")
    monkeypatch.setenv("XDG_STATE_HOME", "/of/the/other")
    assert cache_root() == Path("/of/the/user/kernelwright")
    assert state_root() == Path("/of/the/other/kernelwright")


def test_an_entry_in_the_making_is_not_seen_and_one_that_failed_half_way_leaves_nothing(tmp_path):
    cache = Cache(tmp_path, 2**20)
    with pytest.raises(RuntimeError), cache.making("one") as folder:
        (folder / "entry.json").write_text("{}")
        assert cache.entries() == []
        raise RuntimeError
    assert cache.entries() == []
    assert list(tmp_path.iterdir()) == []
    with cache.making("one") as folder:
        (folder / "entry.json").write_text("{}")
        (folder / "below").mkdir()
        (folder / "below" / "entry.json").write_text("{}")  # a file inside of an entry is none
    assert [path.name for path in cache.entries()] == ["one"]


def test_what_others_remove_while_it_is_looked_at_is_passed_over(tmp_path):
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            (tmp_path / "kind" / "entry" / "build").mkdir(parents=True, exist_ok=True)
            (tmp_path / "kind" / "entry" / "entry.json").touch()
            shutil.rmtree(tmp_path / "kind", ignore_errors=True)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(1000):
            assert {path.name for path in Cache(tmp_path, 2**20, depth=None).entries()} <= {"entry"}
            Cache(tmp_path / "kind", 0).trim()
    finally:
        done.set()
        other.join()


def test_a_used_entry_outlives_one_that_was_not(tmp_path):
    cache = Cache(tmp_path, 250_000)
    for number, name in enumerate(("old", "used")):
        fill(cache, name, 100_000)
        os.utime(tmp_path / name, (number, number))
    os.utime(tmp_path / "old", (5, 5))
    cache.use("used")
    fill(cache, "new", 100_000)
    assert {path.name for path in cache.entries()} == {"old", "used", "new"}  # trimmed a moment ago
    os.utime(tmp_path / ".trimmed", (0, 0))
    fill(cache, "newer", 1)
    assert {path.name for path in cache.entries()} == {"used", "new", "newer"}


def test_a_cache_that_is_not_there_yet_can_be_written_where_its_folder_could_be_made(tmp_path):
    assert is_writable(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert not is_writable(tmp_path / "file" / "cache")


@pytest.mark.parametrize("given", ["abc", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_told_and_the_usual_one_is_in_force(monkeypatch, given):
    monkeypatch.setenv("KERNELWRIGHT_CACHE_GIB", given)
    assert f"KERNELWRIGHT_CACHE_GIB is '{given}'" in limit_fault() and "2.0" in limit_fault()
    assert limit_bytes() == 2 * 2**30


@pytest.mark.parametrize(("given", "gib"), [("5", 5), ("0.5", 0.5), (None, 2)])
def test_the_limit_of_all_is_two_gib_unless_another_number_is_given(monkeypatch, given, gib):
    monkeypatch.delenv("KERNELWRIGHT_CACHE_GIB", raising=False)
    if given is not None:
        monkeypatch.setenv("KERNELWRIGHT_CACHE_GIB", given)
    assert (limit_fault(), limit_bytes()) == ("", gib * 2**30)


@pytest.mark.skipif(bool(bubblewrap.obstacle()), reason="mounting needs namespaces")
def test_a_full_disk_is_seen(tmp_path):
    question = "import sys; from pathlib import Path; from kernelwright.sandbox.storage import is_full"
    question += "; print(is_full(Path(sys.argv[1]) / 'not' / 'yet'))"
    mount = [bubblewrap.program(), "--dev-bind", "/", "/", "--size", str(4 * 2**20), "--tmpfs", str(tmp_path)]
    done = subprocess.run(
        [*mount, sys.executable, "-B", "-c", question, tmp_path], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout == "True\n", done.stderr
    assert not is_full(tmp_path)


def test_a_cache_that_can_not_even_be_looked_at_is_empty(tmp_path):
    cache = Cache(tmp_path / ("a" * 300), 2**20)
    assert cache.use("one") is None
    assert cache.entries() == []


def test_all_that_is_kept_has_one_limit_and_the_longest_unused_goes_first_whatever_its_store(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELWRIGHT_CACHE_GIB", str(250_000 / 2**30))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "entry.json").write_bytes(bytes(100_000))  # no entry, though named like the mark of one
    one, other = (FolderStore(kind, 2**30, Bounds(2**30, 10, 3)) for kind in ("one", "other"))
    for number, (store, key) in enumerate([(one, "a"), (other, "b")]):
        assert store.keep(key, tmp_path / "made")
        os.utime(tmp_path / "cache" / ("one", "other")[number] / key, (number, number))
    assert len(all_entries().entries()) == 2
    assert other.keep("c", tmp_path / "made")
    all_entries().trim()
    assert (len(one), len(other)) == (0, 2)


def test_entries_of_any_depth_are_counted_and_what_lies_in_one_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    for name in ("toolchains/a/headers/b/whole", "builds/c", "builds/c/build/more", "builds/.making-x/build"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "entry.json").touch()
    assert {str(path.relative_to(tmp_path)) for path in all_entries().entries()} == {
        "toolchains/a/headers/b/whole",
        "builds/c",
    }


@pytest.fixture
def closed(tmp_path):
    """A cache that holds a fact, and is closed to everybody."""
    Store("baselines", tmp_path / "cache").put({"name": "a"}, 1)
    (tmp_path / "cache").chmod(0)
    yield tmp_path / "cache"
    (tmp_path / "cache").chmod(0o700)


def test_a_cache_that_is_closed_to_this_user_counts_as_empty_and_facts_last_as_long_as_the_process(closed):
    store = Store("baselines", closed)
    with ordinary_user():
        assert not is_there(closed / "baselines")
        assert store.items() == [] and store.get({"name": "a"}) is None
        store.put({"name": "a"}, 2)
        assert store.get({"name": "a"}) == 2
    assert not is_there(closed / "nothing")
