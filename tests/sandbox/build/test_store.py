import json
import logging
import os
import threading

import pytest

from kernelwright.sandbox.build import BuildStore
from kernelwright.sandbox.machine.cache import VARIABLE

KEY = BuildStore.key("source", None)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return BuildStore()


@pytest.fixture
def build(tmp_path):
    """A finished build folder, as a builder leaves it."""
    folder = tmp_path / "build"
    (folder / "ext").mkdir(parents=True)
    (folder / "ext" / "ext.so").write_bytes(b"machine code")
    (folder / "built.json").write_text(json.dumps({"call": {"path": "ext/ext.so", "module": "ext"}}))
    return folder


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def kept_file(tmp_path, name):
    return next((tmp_path / "cache").rglob(name))


def test_a_finished_build_comes_back_as_it_was(store, build, empty):
    assert store.keep(KEY, build)
    assert store.restore(KEY, empty)
    assert (empty / "ext" / "ext.so").read_bytes() == b"machine code"


def test_a_build_that_is_not_known_leaves_the_folder_empty(store, empty):
    assert not store.restore(KEY, empty)
    assert not list(empty.iterdir())


def test_one_more_letter_in_the_source_is_another_build():
    assert BuildStore.key("source", None) != BuildStore.key("source ", None)


def test_what_the_caller_adds_is_part_of_the_key():
    assert len({KEY, BuildStore.key("source", None, device="sm_90"), BuildStore.key("source", None, device="x")}) == 3


def test_a_changed_file_is_found_and_the_build_is_forgotten(store, build, empty, tmp_path):
    store.keep(KEY, build)
    kept_file(tmp_path, "ext.so").write_bytes(b"other code!!")
    assert not store.restore(KEY, empty)
    assert not list(empty.iterdir())
    assert store.keep(KEY, build)
    assert store.restore(KEY, empty)


def test_an_added_file_is_found(store, build, empty, tmp_path):
    store.keep(KEY, build)
    (kept_file(tmp_path, "ext.so").parent / "more.so").write_bytes(b"")
    assert not store.restore(KEY, empty)


def test_a_link_in_a_build_is_not_followed_but_refused(store, build):
    (build / "ext" / "secret").symlink_to("/etc/passwd")
    assert not store.keep(KEY, build)


def test_a_build_whose_products_lie_elsewhere_is_not_kept(store, build):
    (build / "built.json").write_text(json.dumps({"call": {"path": "../tmp/ext.so", "module": "ext"}}))
    assert not store.keep(KEY, build)


def test_a_build_of_which_a_part_failed_is_kept_with_the_words_of_the_failure(store, build, empty):
    failure = {"extension": "other", "error": "RuntimeError", "text": "error: it is wrong"}
    index = json.loads((build / "built.json").read_text()) | {"other": failure}
    (build / "built.json").write_text(json.dumps(index))
    assert store.keep(KEY, build)
    assert store.restore(KEY, empty)
    assert json.loads((empty / "built.json").read_text()) == index


def test_a_build_to_which_more_has_come_takes_the_place_of_the_one_before(store, build, empty):
    store.keep(KEY, build)
    (build / "late").mkdir()
    (build / "late" / "more.so").write_bytes(b"more")
    assert store.keep_more(KEY, build)
    assert store.restore(KEY, empty)
    assert (empty / "late" / "more.so").read_bytes() == b"more"


@pytest.mark.parametrize("index", ["", "[]", '{"a": 1}', '{"a": {"path": "ext/none.so"}}'])
def test_a_build_without_a_sound_index_is_not_kept(store, build, index):
    (build / "built.json").write_text(index)
    assert not store.keep(KEY, build)


def test_the_longest_unused_builds_go_when_the_store_is_full(build, empty, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (build / "ext" / "ext.so").write_bytes(bytes(300_000))
    store = BuildStore(limit_bytes=700_000)
    keys = [BuildStore.key(str(number), None) for number in range(4)]
    for key in keys:
        assert store.keep(key, build)
    assert store.size_bytes() <= 700_000
    assert not store.restore(keys[0], empty)
    assert store.restore(keys[3], empty)


def test_many_may_keep_one_build_at_once(store, build, empty):
    threads = [threading.Thread(target=store.keep, args=(KEY, build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.restore(KEY, empty)


def test_a_store_that_can_not_be_written_keeps_nothing_and_stops_nothing(build, empty, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert not BuildStore().keep(KEY, build)
    assert not BuildStore().restore(KEY, empty)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "kernelwright.sandbox")
    return caplog


def test_why_a_build_is_thrown_away_is_logged(store, build, empty, tmp_path, logged):
    store.keep(KEY, build)
    kept_file(tmp_path, "ext.so").write_bytes(b"other code!!")
    store.restore(KEY, empty)
    (message,) = logged.messages
    assert f"{tmp_path}/cache/builds/{KEY}" in message and "thrown away" in message


def test_why_a_build_is_not_kept_is_logged(store, build, tmp_path, logged):
    (build / "ext" / "secret").symlink_to("/etc/passwd")
    store.keep(KEY, build)
    (build / "ext" / "ext.so").unlink()
    store.keep(KEY, build)
    link, lacking = logged.messages
    assert "not kept" in link and f"{build}/ext/secret" in link
    assert "not kept" in lacking and str(build) in lacking and "secret" not in lacking


def test_what_goes_from_a_full_store_is_logged(build, tmp_path, monkeypatch, logged):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (build / "ext" / "ext.so").write_bytes(bytes(300_000))
    store, root = BuildStore(limit_bytes=350_000), tmp_path / "cache" / "builds"
    for number in range(2):
        store.keep(str(number), build)
    (message,) = logged.messages
    assert f"{root}/0 is removed" in message and "350000 bytes" in message


def test_what_a_dead_process_has_left_in_a_store_is_logged(store, build, tmp_path, logged):
    left = tmp_path / "cache" / "builds" / ".making-left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    store.keep(KEY, build)
    (message,) = logged.messages
    assert f"{left} is removed" in message
