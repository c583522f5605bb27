import pytest

from kernelwright.sandbox.authenticity import scan
from kernelwright.sandbox.authenticity.evidence import Observed
from kernelwright.sandbox.build import build_store as diagnose
from kernelwright.sandbox.calls.sessions import Refused
from kernelwright.sandbox.machine.logs import LONGEST_LINE, escaped, one_line
from kernelwright.sandbox.tensors.process_memory import MemoryReadError
from kernelwright.sandbox.tensors.values import Flat, RawTensor, Values, flatten, show

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
    "the reason of a failed build": lambda: diagnose.build_reason(f"a.cpp:1:1: error: {HOSTILE}"),
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
    "of a build": lambda: diagnose.trim_build_log(f"a.cpp:1:1: error: {HOSTILE}"),
    "of a build that says nothing": lambda: diagnose.trim_build_log(HOSTILE),
    "of Python": lambda: diagnose.trim_traceback(HOSTILE),
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
