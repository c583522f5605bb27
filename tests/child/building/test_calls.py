import os
from pathlib import Path

import pytest
from torch.utils.cpp_extension import load, load_inline

from kernelwright_child import wire
from kernelwright_child.builder import BuildCall, read_note, write_note

WORK = Path("/work-folder")


def keys(function, *arguments, **options):
    return BuildCall.of(function, arguments, options).keys(WORK)


def test_the_same_call_is_found_however_its_arguments_are_passed():
    assert keys(load_inline, "x", ["int f();"]) == keys(load_inline, cpp_sources=["int f();"], name="x")


def test_a_name_that_a_process_makes_up_is_of_no_matter_where_the_whole_call_is_not_found():
    one, other = keys(load_inline, "x_1", "int f();"), keys(load_inline, "x_2", "int f();")
    assert one.whole != other.whole
    assert one.essence == other.essence


@pytest.mark.parametrize(
    "change", [{"cpp_sources": "int g();"}, {"extra_cflags": ["-O3"]}, {"is_python_module": False}]
)
def test_another_source_or_flag_is_another_call(change):
    given = {"name": "x", "cpp_sources": "int f();"}
    assert keys(load_inline, **given).essence != keys(load_inline, **given | change).essence


def test_a_file_counts_by_its_content_and_not_by_its_path(tmp_path):
    for name, text in (("a.cpp", "int f();"), ("b.cpp", "int f();"), ("c.cpp", "int g();")):
        (tmp_path / name).write_text(text)
    same, also, other = (keys(load, "x", [str(tmp_path / name)]) for name in ("a.cpp", "b.cpp", "c.cpp"))
    assert same.essence == also.essence != other.essence


def test_a_file_that_was_changed_is_another_call_under_the_same_path(tmp_path):
    path = tmp_path / "a.cpp"
    path.write_text("int f();")
    before = keys(load, "x", path)
    path.write_text("int g();")
    assert keys(load, "x", path).whole != before.whole


def test_a_temporary_folder_of_the_process_is_of_no_matter():
    one, other = (
        BuildCall.of(load_inline, ("x", ""), {"extra_cflags": [f"-I{work}/tmp/{name}"]}).keys(Path(work))
        for work, name in (("/one", "tmpabcd1234"), ("/other", "tmpefgh5678"))
    )
    assert one.essence == other.essence


def test_a_call_that_does_not_fit_raises_as_the_call_itself_would():
    with pytest.raises(TypeError, match="cpp_sources"):
        BuildCall.of(load_inline, ("x",), {})


def test_a_note_brings_the_call_with_its_files_and_its_environment(tmp_path, monkeypatch):
    source, note = tmp_path / "deep" / "a.cpp", tmp_path / "note"
    source.parent.mkdir()
    source.write_text("int f();")
    monkeypatch.setenv("KERNELWRIGHT_TEST_GONE", "1")
    monkeypatch.setenv("KERNELWRIGHT_TEST_SET", "1")
    call = BuildCall.of(load, ("x", [source]), {"extra_cflags": ("-O3",)})
    keys_then = call.keys(tmp_path)
    write_note(note, call, keys_then, {"KERNELWRIGHT_TEST_GONE": None, "KERNELWRIGHT_TEST_SET": "2"})
    source.unlink()
    source.parent.rmdir()
    read, found = read_note(note)
    assert (read.function, found) == ("load", keys_then)
    assert read.arguments == {"name": "x", "sources": [str(source)], "extra_cflags": ["-O3"]}
    assert source.read_text() == "int f();"
    assert ("KERNELWRIGHT_TEST_GONE" in os.environ, os.environ["KERNELWRIGHT_TEST_SET"]) == (False, "2")


def test_arguments_that_are_no_plain_values_are_refused(tmp_path):
    call = BuildCall.of(load_inline, ("x", object()), {})
    with pytest.raises(wire.WireError, match="handed over"):
        write_note(tmp_path / "note", call, call.keys(tmp_path), {})
