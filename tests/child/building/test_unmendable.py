# ruff: noqa: RUF001 - the compiler's own quotes

import pytest

from kernelwright_child import compiling

STOCK = frozenset({"forward", "stride"})
BEYOND = [
    "‘walk’ was not declared in this scope; did you mean ‘wait’?",
    "'no_such_thing' is not a member of 'torch'",
    "‘class at::Tensor’ has no member named ‘summ’",
    "‘Walk’ does not name a type",
    'identifier "walk" is undefined',
    'namespace "torch" has no member "empty_lik"',
    "expected ‘;’ before ‘}’ token",
    'expected a ";"',
    "no/such/header.h: No such file or directory",
]
OPEN = [
    "‘forward’ was not declared in this scope",
    'identifier "stride" is undefined',
    "no matching function for call to ‘run(int)’",
    "invalid use of incomplete type ‘struct torch::autograd::Node’",
    "no match for ‘operator<<’",
]


@pytest.mark.parametrize("error", BEYOND)
def test_what_names_something_that_is_nowhere_or_makes_no_sense_is_beyond_mending(error):
    assert compiling.is_unmendable(error, lambda: STOCK)


@pytest.mark.parametrize("error", OPEN)
def test_what_more_declarations_could_mend_is_open(error):
    assert not compiling.is_unmendable(error, lambda: STOCK)


@pytest.mark.parametrize(
    "said", ["main.cpp:4:1: error: words", "main.cpp(4): error: words", "main.cpp:4:1: fatal error: words"]
)
def test_the_first_error_counts_where_it_lies_in_the_source(said):
    told = f"In file included from x.h:1:\nmain.cpp: In function ‘f’:\n{said}\nmain.cpp:5:1: error: more"
    assert compiling.first_error(told, "main.cpp") == "words"
    assert compiling.first_error(f"x.h:3:2: error: first\n{said}", "main.cpp") is None
    assert compiling.first_error("killed", "main.cpp") is None


def test_words_in_strings_are_no_declarations():
    assert compiling.words_of('int a; const char* b = "walk \\" more"; int c;') == {
        "int",
        "a",
        "const",
        "char",
        "b",
        "c",
    }


def test_only_the_includes_of_a_source_are_asked_about():
    source = "#include <a.h>\nint x;\n  # include <b/c.h> // why\n"
    first, _, second, *_ = source.split("\n")
    assert compiling.includes_of(source).split("\n")[:2] == [first, second]
