import re

import pytest
import torch

from kernelwright.problems import INPUT_DISTRIBUTIONS, ExcludedValues
from kernelwright.problems.input_distributions import DECADES, LOWERED, OUTLIER, RAISED, UP, most
from kernelwright.prompts import TargetVersions, device_sheet, render
from kernelwright.prompts.rendering import fenced, trimmed
from kernelwright_child.models import RELATIVE, SHIFT
from tests.support.briefs import FAILED, HISTORY, PASSED, PROBLEM, brief


def text_of(name, asked):
    return next((section.text for section in render(asked).sections if section.name == name), "")


def problem(**changes):
    return PROBLEM.model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "pattern", "said"),
    [({"operators": policy}, "Operator policy `([^`]+)`", policy) for policy in ("any", "no-library", "custom-only")]
    + [({"precision": policy}, "Precision policy `([^`]+)`", policy) for policy in ("strict", "tf32", "half")]
    + [
        ({"direction": direction}, r"\nDirection: ([^.]+)\.", said)
        for direction, said in (("forward", "forward"), ("backward", "backward"), ("both", "forward and backward"))
    ],
)
def test_contract_states_policies_and_the_direction_of_the_problem(changes, pattern, said):
    assert re.findall(pattern, text_of("contract", brief(problem=problem(**changes)))) == [said]


def test_contract_states_the_tolerance_of_the_problem_and_its_floor_as_a_share_of_the_output():
    loose = problem(tolerance=PROBLEM.tolerance.model_copy(update={"factor": 32.0}))
    assert "allowed is 32 times" in text_of("contract", brief(problem=loose))
    assert "7.6e-06 of its largest" in text_of("contract", brief())


TOLD = [name for name, family in INPUT_DISTRIBUTIONS.items() if family.words]


@pytest.mark.parametrize("family", TOLD)
def test_contract_tells_a_family_of_values_unless_the_problem_leaves_it_out(family):
    def told(without=()):
        narrow = ExcludedValues(without=without, reason="lengths are positive.")
        contract = text_of("contract", brief(problem=problem(values=narrow)))
        (changes,) = re.findall(r"one change of these: (.*?)\. All are finite.*", contract)
        return changes.split("; "), "lengths are positive" in contract

    changes, _ = told()
    fewer, has_reason = told((family,))
    assert len(set(changes)) == len(TOLD)
    assert fewer == [one for one in changes if one != changes[TOLD.index(family)]]
    assert has_reason


def test_contract_tells_the_size_of_what_the_judge_changes():
    contract = text_of("contract", brief())
    sizes = [f"{UP} times as large", f"{RAISED} added", f"{LOWERED} taken off", f"{OUTLIER} times the largest"]
    sizes += [f"scaled from 1e-{DECADES} to 1e{DECADES}", f"in fp16 at most {most(torch.float16):.0f}"]
    sizes += [f"scaled by up to {100 * RELATIVE:.0f} %", f"raised by up to {100 * SHIFT:.0f} %"]
    assert [words for words in sizes if words not in contract] == []


def test_versions_are_compared_as_numbers():
    assert TargetVersions(torch="2.10").torch_at_least("2.8")


@pytest.mark.parametrize("target", ["cpp", "cuda", "triton"])
def test_repair_prompt_holds_no_advice_on_speed(target):
    tuning = text_of("tuning", brief(target=target))
    prompt = render(brief("repair", target)).text
    assert tuning
    assert not [line for line in tuning.splitlines() if len(line) > 40 and line in prompt]
    assert "Aim below" not in prompt


def test_repair_prompt_sets_speed_aside_and_gives_the_stage_before_the_reason():
    assert "0.0814" not in render(brief("repair", history=HISTORY)).text
    assert "does not count" in text_of("directive", brief("repair"))
    evidence = text_of("evidence", brief("repair"))
    assert evidence.index("Outcome: failed at check.") < evidence.index("output 0 differs at 31987")


def test_long_log_loses_its_middle():
    log = "\n".join(f"line {number}" for number in range(2000))
    evidence = text_of("evidence", brief("repair", parent=FAILED.model_copy(update={"evidence": log})))
    assert ["line 0\n" in evidence, "line 1000\n" in evidence, "line 1999\n" in evidence] == [True, False, True]


def test_improve_gives_the_measured_time_and_the_best_time_of_all_attempts_that_passed():
    assert "0.0814 ms, 1.50x the" in text_of("evidence", brief("improve"))
    faster = HISTORY[-1].model_copy(update={"number": 4, "candidate_ms": 0.05})
    directive = text_of("directive", brief("improve", history=(*HISTORY, faster)))
    assert "takes 0.0500 ms" in directive
    broken = HISTORY[0].model_copy(update={"candidate_ms": 0.001})
    assert "best so far takes 0.0814" in text_of("directive", brief("improve", history=(broken,)))


@pytest.mark.parametrize(
    ("room", "words"),
    [(None, "design included"), (1.1, "one small change"), (2.0, "what works"), (5.0, "another design")],
)
def test_the_step_that_is_asked_for_is_as_large_as_the_room(room, words):
    directive = text_of("directive", brief("improve", room=room))
    assert words in directive and ("a factor of" in directive) == (room is not None)


@pytest.mark.parametrize("target", ["cpp", "cuda", "triton"])
def test_transposed_convolutions_are_explained_where_there_are_some(target):
    some = problem(source=PROBLEM.source.replace("torch.relu(x) ** 2", "torch.conv_transpose2d(x, x)"))
    assert "ransposed convolution" in render(brief(target=target, problem=some)).text
    assert "ransposed convolution" not in render(brief(target=target)).text


def test_parent_without_a_source_shows_no_source_section():
    cut_off = FAILED.model_copy(update={"source": "", "outcome": "no code"})
    assert text_of("parent", brief("repair", parent=cut_off)) == ""


@pytest.mark.parametrize("role", ["propose", "repair", "improve"])
def test_given_directive_takes_the_place_of_the_default(role):
    default = text_of("directive", brief(role)).splitlines()[2]
    directed = text_of("directive", brief(role, directive="Tile the rows by four."))
    assert "Tile the rows by four." in directed
    assert default not in directed


def test_source_with_fences_inside_is_fenced_by_a_longer_fence():
    inner = PASSED.model_copy(update={"source": '"""\n```python\nx\n```\n"""\n'})
    parent = text_of("parent", brief("improve", parent=inner))
    assert "\n````python\n" in parent
    assert parent.endswith("\n````")


def test_fence_keeps_the_indentation_of_the_first_line():
    assert fenced("\n    x = 1\n", "python") == "```python\n    x = 1\n```"


def test_trimmed_text_says_how_much_is_missing():
    text = "a" * 50 + "\n" + "b" * 60 + "\n" + "c" * 20
    left_out = len(text) - 50 - 20
    start, mark, end = trimmed(text, limit=90).split("\n")
    assert (start, end) == ("a" * 50, "c" * 20) and f" {left_out} characters" in mark


PRODUCT = PROBLEM.model_copy(update={"source": PROBLEM.source.replace("torch.relu(x) ** 2", "torch.matmul(x, x)")})


@pytest.mark.parametrize(("device", "shown"), [("H200", True), ("RTX 4090", False)])
def test_what_only_hopper_has_is_told_on_hopper_alone(device, shown):
    told = render(brief(target="cuda", problem=PRODUCT, device=device_sheet(device))).text
    assert [word in told for word in ("cp.async.bulk", "__cluster_dims__", "sm_90a")] == [shown] * 3
