"""What the builder keeps of each call, and what a worker makes of it; nothing is compiled here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import load, load_inline

from kernelwright.sandbox.build import read_failures
from kernelwright_child import wire
from kernelwright_child.builder import INDEX, BuildCall, Index, Keys, Recorder, read_note, replayed, write_note
from kernelwright_child.wire import is_replayed

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
    path, others = tmp_path / "a.cpp", [tmp_path / "b.cpp", tmp_path / "c.cpp"]
    for file, text in zip((path, *others), ("int f();", "int f();", "int g();"), strict=True):
        file.write_text(text)
    same, also, other = (keys(load, "x", [str(file)]) for file in (path, *others))
    assert same.essence == also.essence != other.essence
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


CALL, KEYS = BuildCall("load_inline", {"name": "ext"}), Keys("whole", "essence")
ERROR = "Error building extension 'ext': [1/2] c++ main.cpp\nmain.cpp:1:2: error: 'x' was not declared"


@pytest.fixture
def recorder(tmp_path):
    (tmp_path / "build").mkdir()
    return Recorder(str(tmp_path / "build"))


class Builds:
    def __init__(self, error):
        self.error, self.tried = error, 0

    def __call__(self):
        self.tried += 1
        raise self.error


def failed(recorder, error, keys=KEYS):
    build = Builds(error)
    with pytest.raises(type(error)):
        recorder.make(build, CALL, keys)
    return build


def test_what_has_failed_is_not_tried_again(recorder):
    build = failed(recorder, RuntimeError(ERROR))
    with pytest.raises(RuntimeError, match="was not declared"):
        recorder.make(build, CALL, KEYS)
    assert build.tried == 1


def test_a_call_under_another_name_is_tried_since_the_name_may_be_what_was_wrong(recorder):
    failed(recorder, RuntimeError(ERROR))
    assert failed(recorder, RuntimeError(ERROR), KEYS._replace(whole="other")).tried == 1


class OwnError(OSError):
    pass


@pytest.mark.parametrize("error", [RuntimeError(ERROR), ImportError("undefined symbol: f"), OwnError("no such file")])
def test_an_error_is_replayed_as_its_nearest_type_that_python_has_with_its_words(recorder, error):
    failed(recorder, error)
    again = replayed(Index(recorder.index.top).find(KEYS))
    assert type(again) in type(error).__mro__[:2]
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", ["print", "__import__", "UnicodeDecodeError", "NoSuchError", "__name__"])
def test_an_index_that_was_tampered_with_gives_no_more_than_an_error(kind):
    assert isinstance(replayed({"error": kind, "text": "words"}), RuntimeError)


def test_an_error_that_was_raised_over_a_replayed_one_is_known():
    try:
        try:
            raise replayed({"error": "RuntimeError", "text": ERROR})
        except RuntimeError:
            raise KeyError("run") from None
    except KeyError as error:
        assert is_replayed(error)
    assert not is_replayed(KeyError("run"))


def test_the_words_of_a_hidden_failure_come_beside_an_error_that_does_not_tell_them(recorder):
    error = RuntimeError(ERROR)
    failed(recorder, error)
    assert recorder.hidden_failure(AttributeError("'NoneType' object has no attribute 'run'")) == ERROR
    assert recorder.hidden_failure(error) == ""


def test_a_failure_is_read_once_however_it_can_be_found(recorder):
    failed(recorder, RuntimeError(ERROR))
    (only,) = read_failures(recorder.index.top)
    assert only.line == "ext: main.cpp:1:2: error: 'x' was not declared"


def test_of_a_verbose_build_the_compilers_words_are_those_that_were_printed(recorder):
    failed(recorder, RuntimeError("Error building extension 'ext'"))
    (only,) = read_failures(recorder.index.top, "main.cpp:1:2: error: 'x' was not declared")
    assert "was not declared" in only.line


@pytest.mark.parametrize(
    "index", ["", "[]", "[" * 9999, '{"a": 1}', '{"a": {"extension": 1, "error": "RuntimeError", "text": "x"}}']
)
def test_an_index_that_is_no_claim_tells_nothing(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    assert read_failures(tmp_path) == ()


def test_a_flood_of_failures_is_cut(tmp_path):
    entries = {str(number): {"extension": "x" * 999, "error": "E", "text": str(number)} for number in range(999)}
    (tmp_path / INDEX).write_text(json.dumps(entries))
    assert len(read_failures(tmp_path)) <= 8
    assert all(len(found.line) <= 400 for found in read_failures(tmp_path))


BUILD = """
import sys
from torch.utils import cpp_extension
cpp_extension.TORCH_LIB_PATH = sys.argv[1]
from kernelwright_child import builder
builder.record(sys.argv[2])
source = 'extern "C" int one() { return 1; }'
print(cpp_extension.load_inline("one", [source], no_implicit_headers=True, is_python_module=False))
"""


@pytest.mark.slow
def test_an_extension_is_linked_where_the_path_of_torchs_libraries_has_spaces(tmp_path):
    spaced = tmp_path / "my projects" / "lib"
    spaced.parent.mkdir()
    spaced.symlink_to(Path(torch.__file__).parent / "lib")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(spaced), str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(done.stdout.strip()).is_file()
