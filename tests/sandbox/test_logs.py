import pytest

from kernelwright.sandbox.authenticity import scan
from kernelwright.sandbox.authenticity.evidence import Observed
from kernelwright.sandbox.calls.sessions import Refused
from kernelwright.sandbox.logs import (
    KEPT_CHARACTERS,
    LONGEST_LINE,
    build_reason,
    escaped,
    names_an_error,
    one_line,
    trim_build_log,
    trim_traceback,
)
from kernelwright.sandbox.tensors import Flat, MemoryReadError, RawTensor, Values, flatten, show
from kernelwright_child.wire import failure

HOSTILE = "\x1b[2Jpassed\x07 \ud800 \u202eback\x9b31m\r" + "A" * 100_000 + "\nmore"
"""A blank screen, a bell, half a pair, another direction, a second kind of sequence, an overwritten line."""


def is_fit(text):
    """Whether it can be stored as UTF-8 and shown on a terminal as it is."""
    text.encode()
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


def test_what_can_not_be_seen_becomes_an_escape_and_all_scripts_and_ends_of_lines_stay():
    assert escaped("a\x1b[0m\x00\ud800\u2028\x85z") == r"a\x1b[0m\x00\ud800\u2028\x85z"
    text = "naïve Größe «x» 漢字 🙂\n\tindented"
    assert escaped(text) == text
    assert escaped("a\r\nb\rc") == "a\nb\\rc"


def test_cleaning_twice_changes_nothing_more():
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE)
    assert one_line(one_line(HOSTILE)) == one_line(HOSTILE)


def test_a_long_line_keeps_its_start_and_its_end():
    line = one_line("TypeError: " + "x" * 5000 + " Invoked with: None")
    assert len(line) == LONGEST_LINE
    assert line.startswith("TypeError: xxx")
    assert line.endswith("Invoked with: None")


@pytest.mark.parametrize("longest", [1, 20, 40, 100, LONGEST_LINE])
def test_a_line_is_never_longer_than_asked(longest):
    assert len(one_line("word " * 1000, max(longest, 20))) <= max(longest, 20)


def tree_of(key):
    return Values({"d": [[key, {"t": 0}]]}, (RawTensor("float32", (0,), bytearray()),))


WORDS = {
    "the reason of a refusal": lambda: Refused({"error": HOSTILE}).reason,
    "what can not be read": lambda: str(MemoryReadError(HOSTILE)),
    "a structure": lambda: show(flatten(tree_of(HOSTILE)).shape),
    "the label of an output": lambda: flatten(tree_of(HOSTILE)).labels[0],
    "the reason of a failed build": lambda: build_reason(f"a.cpp:1:1: error: {HOSTILE}"),
    "a source that is no Python": lambda: scan.refuse(f"x = = '{HOSTILE.replace(chr(0xD800), '')}'"),
    "the name of an operator": lambda: Observed.read({"operators": [[HOSTILE, 1, 1.0]]}).operators[0][0],
    "why there is no account": lambda: Observed.read({"error": HOSTILE}).error,
}


@pytest.mark.parametrize("name", WORDS)
def test_hostile_words_come_in_as_one_short_line_that_can_be_shown(name):
    found = WORDS[name]()
    assert found
    assert is_fit(found)
    assert "\n" not in found
    assert len(found) <= LONGEST_LINE


LOGS = {
    "of a refusal": lambda: Refused({"error": "x", "log": HOSTILE}).log,
    "of a build": lambda: trim_build_log(f"a.cpp:1:1: error: {HOSTILE}"),
    "of a build that says nothing": lambda: trim_build_log(HOSTILE),
    "of Python": lambda: trim_traceback(HOSTILE),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_hostile_log_can_be_shown(name):
    assert is_fit(LOGS[name]())


def test_a_log_that_is_no_text_is_none():
    assert Refused({"error": "x", "log": {"a": 1}}).log == ""


def test_two_long_keys_that_differ_make_two_structures():
    one, other = flatten(tree_of("k" * 500 + "1")), flatten(tree_of("k" * 500 + "2"))
    assert isinstance(one, Flat)
    assert one.shape != other.shape


GCC = """RuntimeError: Error building extension 'x': [1/2] g++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=x
FAILED: [code=1] main.o
g++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=x
/tmp/kernelwright-abc/build/x/main.cpp: In function 'void f()':
/tmp/kernelwright-abc/build/x/main.cpp:7:5: error: 'forwrd' was not declared in this scope; did you mean 'forward'?
    7 |     forwrd(x);
      |     ^~~~~~
      |     forward
ninja: build stopped: subcommand failed.
"""

TRACE = """Traceback (most recent call last):
  File "/home/u/site-packages/sandbox/child/worker.py", line 33, in serve
    answer = handlers[message["op"]](message, fds)
  File "/home/u/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args)
  File "/tmp/kernelwright-abc/candidate.py", line 31, in forward
    return self.op.forward(x, None)
TypeError: forward(): incompatible function arguments.
"""


def test_the_log_starts_with_the_error_and_its_source_line_and_has_no_command_lines():
    assert build_reason(GCC).startswith("main.cpp:7:5: error: 'forwrd'")
    assert trim_build_log(GCC).splitlines()[:2] == [build_reason(GCC), "    7 |     forwrd(x);"]
    assert "-DTORCH_EXTENSION_NAME" not in trim_build_log(GCC)


LACKING = "/usr/bin/ld: cannot find -lfast: No such file or directory"


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (
            "ld: in function `f':\nmain.cpp:(.text+0x5): undefined reference to `g()'\ncollect2: error: ld returned 1",
            " to `g()'",
        ),
        (f"{LACKING}\ncollect2: error: ld returned 1 exit status", LACKING),
        ("one\nCUDA_HOME is not set", "CUDA_HOME is not set"),
        ("", "without a message"),
    ],
    ids=["a linker error", "a library that is not there", "the last line where no error is marked", "nothing"],
)
def test_the_line_that_decides_is_the_reason(log, end):
    assert build_reason(log).endswith(end)


def test_a_long_log_is_cut_in_the_middle():
    log = "\n".join(f"a.cpp:{n}:1: error: number {n}" for n in range(2000))
    trimmed = trim_build_log(log)
    assert len(trimmed) < KEPT_CHARACTERS + 200
    assert "number 0" in trimmed and "number 1999" in trimmed and "left out" in trimmed


def test_a_traceback_keeps_the_candidates_own_frames_and_the_exception():
    assert trim_traceback(TRACE).splitlines() == [
        "Traceback (most recent call last):",
        '  File "candidate.py", line 31, in forward',
        "    return self.op.forward(x, None)",
        "TypeError: forward(): incompatible function arguments.",
    ]


def test_a_log_without_the_compilers_words_is_told_from_one_with_them():
    assert names_an_error(GCC)
    assert not names_an_error("Error building extension")


def test_pages_of_values_do_not_hide_the_argument_at_fault():
    error = TypeError("f(): incompatible function arguments. Invoked with: tensor([[1., 2.],\n [3., 4.]]), None, 3")
    assert failure(error)["error"].endswith(": tensor(...), None, 3")
