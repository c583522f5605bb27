import re
from pathlib import Path

import pytest

from kernelwright.prompts import (
    SECTION_NAMES,
    DeviceSheet,
    PastAttempt,
    PromptError,
    continued,
    estimated_tokens,
    render,
    shortened,
)
from kernelwright.sandbox.correctness.patterns import LOST_PRECISION
from tests.support.briefs import BASELINES, CPU, FAILED, HISTORY, PASSED, PROBLEM, brief

ROLES = ("propose", "repair", "improve")


def names(prompt):
    return [section.name for section in prompt.sections]


def section(prompt, name):
    return next(section.text for section in prompt.sections if section.name == name)


@pytest.mark.parametrize("role", ROLES)
def test_sections_keep_their_order_with_the_stable_ones_first(role):
    sections = render(brief(role)).sections
    stable = [section.stable for section in sections]
    assert stable == sorted(stable, reverse=True)
    shown = [section.name for section in sections]
    assert shown == [name for name in SECTION_NAMES if name in shown]


ELSEWHERE = DeviceSheet(name="Another CPU", kind="cpu", facts=("64 cores to use",))


@pytest.mark.parametrize(
    "asked",
    [brief(), brief(history=HISTORY), brief(device=ELSEWHERE), brief(baselines=BASELINES)],
    ids=["first", "history", "hardware", "what was measured"],
)
def test_stable_digest_ignores_what_changes_between_attempts_and_machines(asked):
    assert render(asked).stable_digest == render(brief()).stable_digest


def test_stable_digest_changes_with_the_problem():
    other = PROBLEM.model_copy(update={"operators": "custom-only"})
    assert render(brief(problem=other)).stable_digest != render(brief()).stable_digest


def test_text_begins_with_the_same_characters_for_all_attempts():
    stable = "\n\n".join(section.text for section in render(for_words("plan")).sections if section.stable)
    assert stable.count("\n## ") == 3
    assert [role for role in ROLES if not render(brief(role)).text.startswith(stable)] == []


def test_section_digests_differ_only_where_the_texts_do():
    first, later = render(brief()), render(brief(device=ELSEWHERE))
    changed = [a.name for a, b in zip(first.sections, later.sections, strict=True) if a.digest != b.digest]
    assert changed == ["hardware"] and first.digest != later.digest


def test_token_estimates_add_up_and_count_bytes_and_not_characters():
    prompt = render(brief("improve"))
    assert prompt.tokens == sum(estimated_tokens(section.text) for section in prompt.sections)
    assert estimated_tokens("核" * 7) == 6


def test_section_without_content_is_left_out_and_others_on_request():
    assert not {"history", "times", "floor"} & set(names(render(brief(history=()))))
    prompt = render(brief(), without=frozenset({"hardware", "example"}))
    assert not {"hardware", "example"} & set(names(prompt))


PARENTS = {"propose": None, "repair": FAILED, "improve": PASSED, "plan": PASSED, "critique": FAILED, "reflect": None}


@pytest.mark.parametrize("role", PARENTS)
def test_every_role_but_a_repair_states_the_times_of_pytorch_and_the_least_that_the_device_needs(role):
    prompt = render(brief(baselines=BASELINES).model_copy(update={"role": role, "parent": PARENTS[role]}))
    if role == "repair":
        assert not {"times", "floor"} & set(names(prompt))
        return
    assert [fact for fact in BASELINES.times if f"- {fact}\n" not in section(prompt, "times") + "\n"] == []
    assert [fact for fact in BASELINES.roofline if f"- {fact}\n" not in section(prompt, "floor") + "\n"] == []


def test_leaving_out_an_unknown_section_names_those_that_exist():
    with pytest.raises(PromptError, match=r"'hardwear'.* role, contract"):
        render(brief(), without=frozenset({"hardwear"}))


def test_own_template_takes_the_place_of_the_shipped_one(tmp_path: Path):
    (tmp_path / "role.md.j2").write_text("You are terse.")
    assert section(render(brief(), templates=tmp_path), "role") == "You are terse."


@pytest.mark.parametrize(
    ("name", "variable"),
    [("hardware", "devise.name")]
    + [("contract", name) for name in ("device", "baselines", "role", "history", "parent", "directive", "best_ms")],
)
def test_a_variable_that_is_not_defined_or_changes_between_attempts_is_an_error_that_names_it_and_the_section(
    tmp_path: Path, name: str, variable: str
):
    (tmp_path / f"{name}.md.j2").write_text("{{ " + variable + " }}")
    with pytest.raises(PromptError, match=f"'{name}'.* '{variable.partition('.')[0]}'"):
        render(brief(), templates=tmp_path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (brief("repair", parent=None), "'repair' needs a parent"),
        (brief("repair", parent=PASSED), r"attempt 3,.*'passed'.*'improve'"),
        (brief("improve", parent=FAILED), "use role 'repair'"),
        (brief(parent=PASSED), "got attempt 3"),
        (brief(target="cuda", device=CPU), r"'cuda'.*'Example CPU'.*'cpu'"),
        (brief(target="triton", versions={"torch": "1.13"}), r"'triton'.* 2\.0 .*1\.13"),
    ],
    ids=[
        "repair without a parent",
        "repair of an attempt that passed",
        "improving an attempt that failed",
        "proposing with a parent",
        "target on the wrong kind of device",
        "Triton under a PyTorch without it",
    ],
)
def test_a_brief_that_does_not_hold_together_is_refused(asked, said):
    with pytest.raises(PromptError, match=said):
        render(asked)


def for_words(role, parent=None):
    return brief().model_copy(update={"role": role, "parent": parent})


WORDS = {"plan": None, "plan from": PASSED, "critique": FAILED, "reflect": None}


@pytest.mark.parametrize("name", WORDS)
def test_a_prompt_for_words_asks_for_no_code(name):
    text = render(for_words(name.split()[0], WORDS[name])).text
    assert "Write no code" in text
    assert re.search(r'`\[\{"name": "[^"]+", "how": "[^"]+"\}\]`\.\s*$', text)


def test_a_critique_shows_the_failure():
    assert FAILED.evidence.splitlines()[0] in render(for_words("critique", FAILED)).text


def test_a_critique_of_what_passed_and_tuning_have_no_prompt():
    with pytest.raises(PromptError, match="use role 'improve'"):
        render(for_words("critique", PASSED))
    with pytest.raises(PromptError, match="role 'tune'"):
        render(for_words("tune"))


def test_lessons_stand_in_the_history():
    lessons = ("Row sums in float32 are too coarse.",)
    assert lessons[0] in render(brief("improve").model_copy(update={"lessons": lessons})).text


def test_a_prompt_to_go_on_begins_with_the_one_before():
    prompt = render(brief())
    longer = continued(prompt, "first line\nlast line")
    assert longer.text.startswith(prompt.text.rstrip("\n"))
    assert "last line" in longer.sections[-1].text


def test_a_repair_of_lost_precision_does_not_send_to_index_arithmetic():
    for evidence, is_small in ((f"wrong; {LOST_PRECISION}: no error is above 1e-05", True), ("wrong", False)):
        said = render(for_words("repair", FAILED.model_copy(update={"evidence": evidence}))).text
        assert ("pieces of split operands, approximate functions" in said) is is_small
        assert ("look at index arithmetic" in said) is not is_small


def test_a_repair_of_a_crash_names_its_usual_causes():
    crash = FAILED.model_copy(update={"outcome": "failed at run", "evidence": "the child ended (killed by SIGSEGV)"})
    assert "`argtypes`" in render(for_words("repair", crash)).text.split("## What went wrong")[1]


def row(number, speedup=None):
    outcome = "failed at check" if speedup is None else "passed"
    return PastAttempt(number=number, role="improve", idea="idea", outcome=outcome, detail="x" * 60, speedup=speedup)


ROWS = [row(1, 1.0), row(2), row(3, 5.0), row(4), row(5), row(6, 2.0), row(7), row(8), row(9)]


def numbers(tokens, first=()):
    return [one.number for one in shortened(ROWS, tokens, first)]


def test_all_rows_stay_where_there_is_room_and_none_without():
    assert numbers(10_000) == list(range(1, 10))
    assert numbers(0) == []


def test_the_fastest_stays_longest_after_the_rows_that_the_step_rests_on_and_the_latest_before_older_ones():
    assert numbers(50) == [3]
    assert numbers(50, first=(2,)) == [2]
    assert numbers(150) == [3, 7, 8, 9]
    assert not {2, 4, 5} & set(numbers(215))


def test_rows_keep_their_order():
    assert numbers(150, first=(9, 1)) == sorted(numbers(150, first=(9, 1)))


def test_the_prompt_says_how_many_are_left_out():
    prompt = render(brief("improve").model_copy(update={"left_out": 7}))
    assert "7 further attempts" in prompt.text
