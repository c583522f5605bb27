"""Blocks within lists and quotations, and programs that hold fences: each comes out character by character."""

import pytest

from kernelwright.agent.replies import Extraction, NotExtracted, extract
from tests.agent.test_extraction import ACCEPTED, DRAFT, FINAL, fenced, indented, with_docstring

CUT_IN_STRING = ACCEPTED["a module cut inside its string"]
SHAPES: dict[str, str] = {
    "a block in a nested list item": f"1. First\n   - The kernel:\n\n{indented(fenced(FINAL), '     ')}\n2. The end.\n",
    "a fence behind two list markers": f"1. - {indented(fenced(FINAL), '     ').lstrip()}",
    "a list item right above the fence": f"1. The kernel:\n{indented(fenced(FINAL), '   ')}2. The end.\n",
    "a list item whose code is not indented": f"- ```python\n{FINAL}```\n",
    "an indented fence whose code is not": f"1. The kernel:\n\n   ```python\n{FINAL}   ```\n",
    "a fence far in under a line of prose": f"The kernel:\n{indented(fenced(FINAL), '      ')}",
    "a quotation within a quotation": indented(fenced(FINAL), "> > ").replace("\n\n", "\n> >\n"),
    "JSON in a block of a list item": ACCEPTED["JSON in a block"].replace("```json\n", "- ```json\n  "),
    "a fence in a table's cell before the block": f"| a | b |\n|---|---|\n| ``` | x |\n\n{fenced(FINAL)}",
    "a thought that leaves a listed block open": f"- ```python\n  {DRAFT}\n</think>\n{fenced(FINAL)}",
    "a code tag within another tag": f'<pre><code class="python">\n{FINAL}</code></pre>\n',
    "a module cut inside its string": CUT_IN_STRING,
    "a module cut inside its string, prose between": CUT_IN_STRING.replace("```\n\n```", "```\n\nIt goes on:\n\n```"),
}
IN_DOCSTRINGS = {
    "two examples": "A:\n```python\nfirst()\n```\nB:\n```python\nsecond()\n```\n",
    "a bare example": "Use:\n```\nfirst()\n```\n",
    "one bare fence": "Use:\n```\nfirst()\n",
}
NEEDING = "class ModelNew(Base):\n    def forward(self, x):\n        return scaled(x)\n"
ABOVE = "import torch\nfrom torch.nn import Module as Base\n\n\ndef scaled(x):\n    return 2 * x\n"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_program_comes_out_of_these_marks_as_it_was_written(shape: str) -> None:
    found = extract(SHAPES[shape])

    assert isinstance(found, Extraction), found
    assert found.source == FINAL


@pytest.mark.parametrize("case", IN_DOCSTRINGS)
def test_fences_in_a_docstring_stay_in_it(case: str) -> None:
    program = with_docstring(IN_DOCSTRINGS[case])

    found = extract(f"Here:\n\n{fenced(program)}\nDone.\n")

    assert isinstance(found, Extraction), found
    assert found.source == program


def test_a_block_that_a_short_fence_closes_is_whole_where_the_reply_was_cut() -> None:
    found = extract(f"````python\n{FINAL}```\nand then", truncated=True)

    assert isinstance(found, Extraction), found
    assert found.source == FINAL


def test_a_class_is_given_what_it_reads_from_the_block_above() -> None:
    found = extract(fenced(ABOVE) + fenced(NEEDING))

    assert isinstance(found, Extraction), found
    assert found.source == f"{ABOVE}\n\n{NEEDING}"


def test_a_local_name_of_another_function_does_not_pass_for_the_missing_one() -> None:
    own = f"{NEEDING}\n\ndef other():\n    scaled = 1\n    return scaled\n"

    found = extract(fenced(ABOVE) + fenced(own))

    assert isinstance(found, Extraction), found
    assert found.source == f"{ABOVE}\n\n{own}"


@pytest.mark.parametrize("line", ["from kernels import *", "def f(x):\n    global x"])
def test_where_missing_names_can_not_be_told_nothing_is_added(line: str) -> None:
    own = f"import torch\n{line}\n\n\n{NEEDING}"

    found = extract(fenced(ABOVE) + fenced(own))

    assert isinstance(found, Extraction), found
    assert found.source == own


def test_only_the_end_of_a_reply_beyond_all_measure_is_read() -> None:
    found = extract(fenced(FINAL) + "x" * 2_000_000)

    assert isinstance(found, NotExtracted), found
    assert found.kind == "no_code"
