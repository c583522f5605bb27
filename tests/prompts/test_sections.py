"""How a prompt is put together: order, digests, token estimates, what may depend on what."""

from pathlib import Path

import pytest

from kernelwright.prompts import SECTION_NAMES, DeviceSheet, PromptError, estimated_tokens, render
from tests.support.briefs import CPU, FAILED, HISTORY, PASSED, PROBLEM, YARDSTICK, brief

ROLES = ("propose", "repair", "improve")


def names(prompt):
    return [section.name for section in prompt.sections]


def section(prompt, name):
    return next(section.text for section in prompt.sections if section.name == name)


@pytest.mark.parametrize("role", ROLES)
def test_stable_sections_come_first(role):
    stable = [section.stable for section in render(brief(role)).sections]
    assert stable == sorted(stable, reverse=True)


@pytest.mark.parametrize("role", ROLES)
def test_sections_keep_their_order(role):
    shown = names(render(brief(role)))
    assert shown == [name for name in SECTION_NAMES if name in shown]


def test_stable_digest_is_the_same_for_all_roles():
    assert len({render(brief(role)).stable_digest for role in ROLES}) == 1


def test_stable_digest_ignores_history():
    assert render(brief(history=HISTORY)).stable_digest == render(brief()).stable_digest


def test_stable_digest_ignores_hardware():
    elsewhere = DeviceSheet(name="Another CPU", kind="cpu", facts=("64 cores to use",))
    assert render(brief(device=elsewhere)).stable_digest == render(brief()).stable_digest


def test_digest_covers_the_hardware():
    elsewhere = DeviceSheet(name="Another CPU", kind="cpu")
    assert render(brief(device=elsewhere)).digest != render(brief()).digest


def test_stable_digest_changes_with_the_problem():
    other = PROBLEM.model_copy(update={"operators": "custom-only"})
    assert render(brief(problem=other)).stable_digest != render(brief()).stable_digest


def test_text_begins_with_the_same_characters_for_all_attempts():
    first, later = render(brief()), render(brief("improve"))
    stable = "\n\n".join(section.text for section in first.sections if section.stable)
    assert first.text.startswith(stable)
    assert later.text.startswith(stable)


def test_section_digests_differ_only_where_the_texts_do():
    first, later = render(brief()), render(brief(device=DeviceSheet(name="Another CPU", kind="cpu")))
    changed = [a.name for a, b in zip(first.sections, later.sections, strict=True) if a.digest != b.digest]
    assert changed == ["hardware"]


def test_token_estimates_add_up():
    prompt = render(brief("improve"))
    assert prompt.tokens == sum(estimated_tokens(section.text) for section in prompt.sections)


def test_token_estimate_counts_bytes_and_not_characters():
    assert estimated_tokens("核" * 7) == 6


def test_section_without_content_is_left_out():
    assert "history" not in names(render(brief(history=())))


PARENTS = {"propose": None, "repair": FAILED, "improve": PASSED, "plan": PASSED, "critique": FAILED, "reflect": None}


@pytest.mark.parametrize("role", PARENTS)
def test_every_role_is_told_what_pytorch_takes_and_what_is_needed_at_least(role):
    asked = brief(yardstick=YARDSTICK).model_copy(update={"role": role, "parent": PARENTS[role]})
    prompt = render(asked)
    assert [fact for fact in YARDSTICK.times if f"- {fact}\n" not in section(prompt, "times") + "\n"] == []
    assert [fact for fact in YARDSTICK.floor if f"- {fact}\n" not in section(prompt, "floor") + "\n"] == []


def test_what_nobody_has_measured_takes_no_room():
    assert not {"times", "floor"} & set(names(render(brief())))


def test_stable_digest_ignores_what_was_measured():
    assert render(brief(yardstick=YARDSTICK)).stable_digest == render(brief()).stable_digest


def test_section_can_be_left_out_on_request():
    prompt = render(brief(), without=frozenset({"hardware", "example"}))
    assert not {"hardware", "example"} & set(names(prompt))


def test_leaving_out_an_unknown_section_names_those_that_exist():
    with pytest.raises(PromptError, match=r"'hardwear'.* role, contract"):
        render(brief(), without=frozenset({"hardwear"}))


def test_own_template_takes_the_place_of_the_shipped_one(tmp_path: Path):
    (tmp_path / "role.md.j2").write_text("You are terse.")
    assert section(render(brief(), templates=tmp_path), "role") == "You are terse."


def test_undefined_variable_is_an_error_that_names_section_and_variable(tmp_path: Path):
    (tmp_path / "hardware.md.j2").write_text("{{ devise.name }}")
    with pytest.raises(PromptError, match=r"'hardware'.* 'devise'"):
        render(brief(), templates=tmp_path)


@pytest.mark.parametrize("variable", ["device", "yardstick", "role", "history", "parent", "directive", "best_ms"])
def test_stable_section_cannot_read_what_changes_between_attempts(tmp_path: Path, variable: str):
    (tmp_path / "contract.md.j2").write_text("{{ " + variable + " }}")
    with pytest.raises(PromptError, match=f"'contract'.* '{variable}'"):
        render(brief(), templates=tmp_path)


def test_repair_without_a_parent_is_refused():
    with pytest.raises(PromptError, match="'repair' needs a parent"):
        render(brief("repair", parent=None))


def test_repair_of_an_attempt_that_passed_is_refused():
    with pytest.raises(PromptError, match=r"attempt 3,.*'passed'.*'improve'"):
        render(brief("repair", parent=brief("improve").parent))


def test_improving_an_attempt_that_failed_is_refused():
    with pytest.raises(PromptError, match="use role 'repair'"):
        render(brief("improve", parent=brief("repair").parent))


def test_proposing_with_a_parent_is_refused():
    with pytest.raises(PromptError, match="got attempt 3 as parent"):
        render(brief(parent=brief("improve").parent))


def test_target_on_the_wrong_kind_of_device_is_refused():
    with pytest.raises(PromptError, match=r"'cuda'.*'Example CPU'.*'cpu'"):
        render(brief(target="cuda", device=CPU))


def test_triton_under_a_pytorch_without_it_is_refused():
    with pytest.raises(PromptError, match=r"'triton'.* 2\.0 .*1\.13"):
        render(brief(target="triton", versions={"torch": "1.13"}))
