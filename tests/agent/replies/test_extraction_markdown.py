"""Blocks within lists, and programs that hold fences: each comes out character by character."""

import pytest

from tests.agent.replies.test_extraction import (
    DRAFT,
    FINAL,
    extracted,
    fenced,
    indented,
    refused,
    with_docstring,
)

SHAPES: dict[str, str] = {
    "a block in a nested list item": f"1. First\n   - The kernel:\n\n{indented(fenced(FINAL), '     ')}\n2. The end.\n",
    "a fence behind two list markers": f"1. - {indented(fenced(FINAL), '     ').lstrip()}",
    "a list item right above the fence": f"1. The kernel:\n{indented(fenced(FINAL), '   ')}2. The end.\n",
    "a list item whose code is not indented": f"- ```python\n{FINAL}```\n",
    "an indented fence whose code is not": f"1. The kernel:\n\n   ```python\n{FINAL}   ```\n",
    "a fence far in under a line of prose": f"The kernel:\n{indented(fenced(FINAL), '      ')}",
    "a fence in a table's cell before the block": f"| a | b |\n|---|---|\n| ``` | x |\n\n{fenced(FINAL)}",
    "a thought that leaves a listed block open": f"- ```python\n  {DRAFT}\n</think>\n{fenced(FINAL)}",
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


def test_a_class_without_torch_is_given_the_block_above() -> None:
    assert extracted(fenced(ABOVE) + fenced(NEEDING)).source == f"{ABOVE}\n\n{NEEDING}"


def test_a_class_with_its_own_import_of_torch_is_given_nothing() -> None:
    own = f"import torch\n\n\n{NEEDING}"
    assert extracted(fenced(ABOVE) + fenced(own)).source == own


def test_only_the_end_of_a_reply_beyond_all_measure_is_read() -> None:
    assert refused(fenced(FINAL) + "x" * 2_000_000).kind == "no_code"
