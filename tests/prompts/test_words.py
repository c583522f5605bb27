import re

import pytest

from kernelwright.prompts import Brief, PromptError, continued, render
from tests.support.briefs import FAILED, PASSED, brief


def asked(role, parent=None):
    return Brief.model_validate(dict(brief()) | {"role": role, "parent": parent})


CASES = {"plan": None, "plan from": PASSED, "critique": FAILED, "reflect": None}


@pytest.mark.parametrize("name", CASES)
def test_a_prompt_for_words_asks_for_no_code(name):
    text = render(asked(name.split()[0], CASES[name])).text
    assert "Write no code" in text
    assert re.search(r'`\[\{"name": "[^"]+", "how": "[^"]+"\}\]`\.\s*$', text)


def test_a_prompt_for_words_shares_the_stable_prefix_of_the_others():
    assert render(asked("plan")).stable_digest == render(brief()).stable_digest


def test_a_critique_shows_the_failure():
    assert FAILED.evidence.splitlines()[0] in render(asked("critique", FAILED)).text


def test_a_critique_of_what_passed_and_tuning_have_no_prompt():
    with pytest.raises(PromptError, match="use role 'improve'"):
        render(asked("critique", PASSED))
    with pytest.raises(PromptError, match="role 'tune' asks nobody"):
        render(asked("tune"))


def test_lessons_stand_in_the_history():
    lessons = ("Row sums in float32 are too coarse.",)
    assert lessons[0] in render(brief("improve").model_copy(update={"lessons": lessons})).text


def test_a_prompt_to_go_on_begins_with_the_one_before():
    prompt = render(brief())
    longer = continued(prompt, "first line\nlast line")
    assert longer.text.startswith(prompt.text.rstrip("\n"))
    assert "last line" in longer.sections[-1].text


def test_a_repair_of_a_crash_names_its_usual_causes():
    crash = FAILED.model_copy(update={"outcome": "failed at run", "evidence": "the child ended (killed by SIGSEGV)"})
    assert "`argtypes`" in render(asked("repair", crash)).text.split("## What went wrong")[1]
