import json

from kernelwright.sandbox.build import read_record
from kernelwright_child.compiling import REPORT

LINE = {"extension": "ext", "file": "main.cpp", "way": "light", "failed": [], "seconds": 4.2}


def folder_with(tmp_path, *lines):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / REPORT).write_text("\n".join(lines))
    return tmp_path


def test_each_compilation_is_told_with_its_way_and_its_seconds(tmp_path):
    (only,) = read_record(folder_with(tmp_path, json.dumps(LINE))).compilations
    assert (only.extension, only.way, only.seconds) == ("ext", "light", 4.2)


def test_a_compilation_that_failed_is_told_as_such(tmp_path):
    lines = [json.dumps(LINE), json.dumps(LINE | {"compiled": False})]
    way = "ext main.cpp: light, 4.2 s"
    assert read_record(folder_with(tmp_path, *lines)).ways == (way, f"{way}, failed")


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
