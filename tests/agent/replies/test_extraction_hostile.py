"""Replies made to break the reader: none makes it raise, warn, or take more than seconds."""

import ast
import random
import threading
import time
import warnings
from pathlib import Path

import pytest

from kernelwright.agent.replies import Extraction, NotExtracted, Parser, extract

pytestmark = pytest.mark.slow

PROGRAM = (Path(__file__).parent / "texts" / "relu.txt").read_text(encoding="utf-8")
LIMIT_S = 20.0
"""About ten times what the slowest takes on one idle core; a quadratic reading would take minutes, or hours."""


def huge(size: int) -> dict[str, str]:
    def repeated(text: str) -> str:
        return text * (size // len(text))

    return {
        "one line of letters": repeated("a"),
        "one line of backticks": repeated("`"),
        "newlines": repeated("\n"),
        "blanks": repeated(" "),
        "bare fences": repeated("```\n"),
        "opening fences": repeated("```python\n"),
        "opening fences behind prose": repeated("a ```python\n"),
        "fences of falling length": "".join("`" * (3000 - i) + "x\n" for i in range(2900)),
        "whole blocks": repeated("```python\nclass ModelNew: pass\n```\n"),
        "broken blocks": repeated("```python\nclass ModelNew: (\n```\n"),
        "blocks that end in a string": repeated('```python\nModelNew="""\n```\n'),
        "closing tags": repeated("</think>"),
        "opening tags": repeated("<think>\n"),
        "closing tags in a fence": "```\n<think>\n" + repeated("</think>\n"),
        "quotation marks": repeated('"'),
        "escaped quotation marks": f"```python\nModelNew{repeated(chr(39) + chr(92))}\n```",
        "open classes": repeated("import torch\nclass ModelNew(\n"),
        "a program and a sea of statements": PROGRAM + repeated("x = 1\n"),
        "channels": repeated("<|channel|>"),
        "NUL characters": repeated("\0"),
        "lone surrogates": repeated("\ud800"),
        "a block with a far indentation": " " * 100_000 + f"```python\n{repeated('  ModelNew' + chr(10))}",
        "fences of all kinds": repeated('```python\n"""\n~~~\n\'\'\'\n</think>\n<code>\n{"a": "\n> ```\n'),
    }


@pytest.mark.parametrize("case", huge(0))
def test_a_huge_reply_is_read_within_seconds(case: str) -> None:
    reply = huge(1_000_000)[case]
    started = time.perf_counter()
    extract(reply)

    assert time.perf_counter() - started < LIMIT_S


def test_the_answer_is_found_at_the_end_of_a_huge_reply() -> None:
    found = extract("I wonder. ```not a fence``` " * 100_000 + f"\n```python\n{PROGRAM}```\n")

    assert isinstance(found, Extraction), found
    assert found.source == PROGRAM


DEEP = {
    "brackets": "(" * 100_000,
    "signs": "-" * 100_000 + "1",
    "attributes": "a" + ".b" * 100_000,
    "sums": "1+" * 100_000 + "1",
    "calls": "f" + "()" * 100_000,
    "lambdas": "lambda:" * 30_000 + "1",
    "comparisons": "not " * 50_000 + "1",
    "digits": "9" * 100_000,
}


@pytest.mark.parametrize("case", DEEP)
def test_nesting_beyond_the_parser_is_a_syntax_error(case: str) -> None:
    found = extract(f"```python\nimport torch\nclass ModelNew: pass\nx = {DEEP[case]}\n```\n")

    assert isinstance(found, NotExtracted), found
    assert found.kind == "syntax_error"


def test_a_long_chain_of_branches_is_no_obstacle() -> None:
    found = extract("```python\nclass ModelNew: pass\nif 1: pass\n" + "elif 1: pass\n" * 1500 + "```\n")

    assert isinstance(found, Extraction), found


FRAGMENTS = [
    *["```", "~~~", "````", "```python\n", "\n```\n", "python\n", "\n", "\r\n", " ", "\t", "> ", "- ", "1. "],
    *["<think>", "</think>", "<code>", "</code>", "<answer>\n", "<|end|>", "</s>"],
    *["<|channel|>final<|message|>", "<|channel|>analysis<|message|>", '{"code": "', "\\n", '"}', "[", "{", "("],
    *[
        "class ModelNew:\n",
        "    pass\n",
        "class ModelNew(",
        "import torch\n",
        "ModelNew = Foo\n",
        "@jit\n",
        "def f(:\n",
    ],
    *[
        '"""',
        "'''",
        "'",
        '"',
        "#",
        ")",
        "\\",
        "\0",
        "\ud800",
        "\ufeff",
        "é",
        "x = 1\n",
        "Note: x\n",
        "a line of prose\n",
    ],
    *["load_inline(", "cuda_sources=", "lambda:", "I'm sorry", PROGRAM, PROGRAM[:300], PROGRAM[200:]],
]


@pytest.mark.parametrize("truncated", [False, True])
def test_no_mixture_of_fragments_makes_it_raise(truncated: bool) -> None:
    draw = random.Random(0)

    for _ in range(300):
        reply = "".join(draw.choice(FRAGMENTS) for _ in range(draw.randint(1, 60)))
        reasoning = "".join(draw.choice(FRAGMENTS) for _ in range(draw.randint(0, 5)))
        extract(reply, reasoning=reasoning, truncated=truncated).model_dump_json()


ODD = 'import torch\n\n\nclass ModelNew:\n    pattern = "\\d{}"\n'


def said_of_escapes(seen):
    """What parsing warned of; not what is said of a file left open elsewhere that is collected in that time."""
    return [str(warning.message) for warning in seen if "escape" in str(warning.message)]


def test_other_code_still_gets_its_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Parser().read(ODD.format("c"))
        with pytest.raises(SyntaxError):
            ast.parse(ODD.format("d"))


def test_parsing_in_many_threads_gives_no_warning_and_piles_up_no_filters():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = len(warnings.filters)
        threads = [
            threading.Thread(target=lambda: [Parser().read(ODD.format(number)) for number in range(200)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (said_of_escapes(seen), len(warnings.filters) - before <= 4) == ([], True)
