"""A reply that was cut off never passes a draft off as its answer, wherever the cut falls."""

from pathlib import Path

import pytest

from kernelwright.agent.replies import Extraction, NotExtracted, extract
from tests.agent.replies.test_extraction import extracted, refused

FOLDER = Path(__file__).parent / "texts"
REPLIES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
PROGRAM = (FOLDER / "relu.txt").read_text(encoding="utf-8")
BLOCK = f"```python\n{PROGRAM}```\n"


def final_source(name: str) -> str:
    return extracted(REPLIES[name]).source


@pytest.mark.parametrize("name", REPLIES)
def test_the_whole_reply_gives_the_final_program(name: str) -> None:
    source = final_source(name)

    assert ("relu_final" in source, "relu_draft" in source) == (True, False)


@pytest.mark.parametrize("name", REPLIES)
def test_a_cut_reply_is_truncated_up_to_its_last_closing_fence_and_gives_its_source_behind_it(name: str) -> None:
    reply, source = REPLIES[name], final_source(name)
    end = reply.rindex("\n```") + len("\n```")
    for length in [*range(0, end - 1, 20), *range(end, len(reply) + 1, 20)]:
        found = extract(reply[:length], truncated=True)
        if length < end:
            assert isinstance(found, NotExtracted) and found.kind == "truncated", length
        else:
            assert isinstance(found, Extraction) and found.source == source, length


def test_a_source_taken_from_a_cut_reply_comes_with_a_warning() -> None:
    assert "cut off" in extracted(f"{BLOCK}\nThis is fast, for it", truncated=True).warnings[0]


CUT_ALTHOUGH_IT_PARSES = {
    "an open block": BLOCK.removesuffix("```\n"),
    "raw code": PROGRAM,
    "an open block behind a whole draft": f"{BLOCK}Better:\n```python\n{PROGRAM}",
    "an opening fence behind a whole draft": f"{BLOCK}Better:\n```python\n",
    "an open answer behind a draft in the thought": f"{BLOCK}</think>\n```python\n{PROGRAM}",
    "prose behind a draft in the thought": f"{BLOCK}</think>\nThe answer",
    "a draft in a thought that never closes": f"<think>\n{BLOCK}Now",
    "a thought closed and nothing else": f"{BLOCK}</think>\n",
    "a whole draft in an open docstring": f'```python\n"""Unlike\n\n{BLOCK}',
    "a part without its imports": "```python\nclass ModelNew:\n    pass\n```\nAnd",
    "nothing": "",
    "prose": "Let me see",
}


@pytest.mark.parametrize("case", CUT_ALTHOUGH_IT_PARSES)
def test_a_cut_reply_of_this_shape_is_called_truncated(case: str) -> None:
    assert refused(CUT_ALTHOUGH_IT_PARSES[case], truncated=True).kind == "truncated"


def test_a_reply_cut_in_the_separate_reasoning_gives_no_draft_of_it() -> None:
    assert refused("", reasoning=BLOCK, truncated=True).kind == "truncated"


def test_a_syntax_error_in_a_closed_block_is_not_put_down_to_the_cut() -> None:
    found = refused(BLOCK.replace("(self, x)", "(self, x") + "\nThis", truncated=True)
    assert found.kind == "syntax_error"
