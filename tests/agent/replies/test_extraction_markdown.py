"""Blocks within lists and quotations, and programs that hold fences: each comes out character by character."""

import pytest

from tests.agent.replies.test_extraction import (
    ACCEPTED,
    DRAFT,
    FINAL,
    extracted,
    fenced,
    indented,
    refused,
    with_docstring,
)

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
    assert extracted(SHAPES[shape]).source == FINAL


@pytest.mark.parametrize("case", IN_DOCSTRINGS)
def test_fences_in_a_docstring_stay_in_it(case: str) -> None:
    program = with_docstring(IN_DOCSTRINGS[case])
    assert extracted(f"Here:\n\n{fenced(program)}\nDone.\n").source == program


def test_a_block_that_a_short_fence_closes_is_whole_where_the_reply_was_cut() -> None:
    assert extracted(f"````python\n{FINAL}```\nand then", truncated=True).source == FINAL


@pytest.mark.parametrize("more", ["", "\n\ndef other():\n    scaled = 1\n    return scaled\n"])
def test_a_class_is_given_what_it_reads_from_the_block_above(more: str) -> None:
    """Also where another function has a local name that is called so."""
    found = extracted(fenced(ABOVE) + fenced(NEEDING + more))
    assert found.source == f"{ABOVE}\n\n{NEEDING}{more}"


@pytest.mark.parametrize("line", ["from kernels import *", "def f(x):\n    global x"])
def test_where_missing_names_can_not_be_told_nothing_is_added(line: str) -> None:
    own = f"import torch\n{line}\n\n\n{NEEDING}"
    assert extracted(fenced(ABOVE) + fenced(own)).source == own


def test_only_the_end_of_a_reply_beyond_all_measure_is_read() -> None:
    assert refused(fenced(FINAL) + "x" * 2_000_000).kind == "no_code"
