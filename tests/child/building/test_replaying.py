"""What the builder keeps of each call, and what a worker makes of it; nothing is compiled here."""

import json

import pytest

from kernelwright.sandbox.build import read_failures
from kernelwright_child.builder import INDEX, BuildCall, Index, Keys, Recorder, replayed
from kernelwright_child.wire import is_replayed

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
    assert recorder.words_beside(AttributeError("'NoneType' object has no attribute 'run'")) == ERROR
    assert recorder.words_beside(error) == ""


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
