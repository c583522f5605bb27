import pytest

from kernelwright.sandbox.authenticity.scan import refuse

REFUSED = {
    "a null byte": ("x = 1\ny = '\0'\n", r"line 2: Python text cannot hold null bytes: y = '\x00'"),
    "a null byte at the end of a candidate": (
        "class ModelNew: pass\n\0",
        r"line 2: Python text cannot hold null bytes: \x00",
    ),
    "a syntax error": ("x = 1\nclass ModelNew(:\n", "line 2: invalid syntax: class ModelNew(:"),
    "a lone surrogate": ("x = '\ud800'", "the source cannot be parsed: 'utf-8' codec can't encode"),
    "nothing": ("", "no class ModelNew is defined; the file defines nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_run_is_refused_in_a_sentence(name):
    source, said = REFUSED[name]
    assert refuse(source).startswith(said)
    assert "None" not in refuse(source)
