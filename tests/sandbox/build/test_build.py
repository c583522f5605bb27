import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright.sandbox.build import BuildStore, read_record
from kernelwright.sandbox.storage import VARIABLE
from kernelwright_child.compiling import REPORT

KEY = BuildStore.key("source", None)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return BuildStore()


@pytest.fixture
def build(tmp_path):
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


def test_a_finished_build_comes_back_as_it_was_and_one_that_is_not_known_leaves_the_folder_empty(store, build, empty):
    assert not store.restore(KEY, empty)
    assert not list(empty.iterdir())
    assert store.keep(KEY, build)
    assert store.restore(KEY, empty)
    assert (empty / "ext" / "ext.so").read_bytes() == b"machine code"


def test_the_source_and_what_the_caller_adds_are_the_key():
    others = [
        BuildStore.key("source ", None),
        *(BuildStore.key("source", None, device=name) for name in ("sm_90", "x")),
    ]
    assert len({KEY, *others}) == 4


def test_a_changed_or_added_file_is_found_and_the_build_is_forgotten_and_logged(store, build, empty, tmp_path, logged):
    store.keep(KEY, build)
    kept_file(tmp_path, "ext.so").write_bytes(b"other code!!")
    assert not store.restore(KEY, empty)
    assert not list(empty.iterdir())
    (message,) = logged.messages
    assert f"{tmp_path}/cache/builds/{KEY}" in message and "thrown away" in message
    assert store.keep(KEY, build)
    (kept_file(tmp_path, "ext.so").parent / "more.so").write_bytes(b"")
    assert not store.restore(KEY, empty)
    assert store.keep(KEY, build)
    assert store.restore(KEY, empty)


def test_a_link_in_a_build_is_not_followed_but_refused_and_why_is_logged(store, build, tmp_path, logged):
    (build / "ext" / "secret").symlink_to("/etc/passwd")
    assert not store.keep(KEY, build)
    (build / "ext" / "ext.so").unlink()
    assert not store.keep(KEY, build)
    link, lacking = logged.messages
    assert "not kept" in link and f"{build}/ext/secret" in link
    assert "not kept" in lacking and str(build) in lacking and "secret" not in lacking


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


@pytest.mark.parametrize(
    "index",
    ["", "[]", '{"a": 1}', '{"a": {"path": "ext/none.so"}}', '{"call": {"path": "../tmp/ext.so", "module": "ext"}}'],
)
def test_a_build_without_a_sound_index_of_what_lies_in_it_is_not_kept(store, build, index):
    (build / "built.json").write_text(index)
    assert not store.keep(KEY, build)


def test_the_longest_unused_builds_go_when_the_store_is_full_and_that_is_logged(
    build, empty, tmp_path, monkeypatch, logged
):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (build / "ext" / "ext.so").write_bytes(bytes(300_000))
    store = BuildStore(limit_bytes=700_000)
    keys = [BuildStore.key(str(number), None) for number in range(4)]
    for key in keys:
        assert store.keep(key, build)
    store.trim()
    assert store.size_bytes() <= 700_000
    assert not store.restore(keys[0], empty)
    assert store.restore(keys[3], empty)
    assert len(logged.messages) == 2
    assert f"{tmp_path}/cache/builds/{keys[0]} is removed" in logged.text and "700000 bytes" in logged.messages[0]


def test_many_may_keep_one_build_at_once(store, build, empty):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.keep, [KEY] * 8, [build] * 8))
    assert store.restore(KEY, empty)


def test_a_store_that_can_not_be_written_keeps_nothing_and_stops_nothing(build, empty, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert not BuildStore().keep(KEY, build)
    assert not BuildStore().restore(KEY, empty)


def test_what_a_dead_process_has_left_in_a_store_is_logged(store, build, tmp_path, logged):
    left = tmp_path / "cache" / "builds" / ".making-left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    store.keep(KEY, build)
    (message,) = logged.messages
    assert f"{left} is removed" in message


LINE = {"extension": "ext", "file": "main.cpp", "way": "light", "failed": [], "seconds": 4.2}


def folder_with(tmp_path, *lines):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / REPORT).write_text("\n".join(lines))
    return tmp_path


def test_each_compilation_is_reported_with_its_way_its_seconds_and_whether_it_failed(tmp_path):
    record = read_record(folder_with(tmp_path, json.dumps(LINE), json.dumps(LINE | {"compiled": False})))
    first, way = record.compilations[0], "ext main.cpp: light, 4.2 s"
    assert (first.extension, first.way, first.seconds) == ("ext", "light", 4.2)
    assert record.ways == (way, f"{way}, failed")


def test_lines_that_are_no_claims_are_left_out(tmp_path):
    lines = ["{", json.dumps(LINE | {"way": "magic"}), json.dumps(LINE | {"more": 1}), "[" * 9999, json.dumps(LINE)]
    assert len(read_record(folder_with(tmp_path, *lines)).compilations) == 1


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text(json.dumps(LINE))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / REPORT).symlink_to(tmp_path / "secret")
    assert read_record(tmp_path).compilations == ()


def test_a_flood_is_cut_and_nothing_built_is_nothing_told(tmp_path):
    assert read_record(tmp_path).compilations == ()
    assert len(read_record(folder_with(tmp_path, *[json.dumps(LINE)] * 10_000)).compilations) <= 64
