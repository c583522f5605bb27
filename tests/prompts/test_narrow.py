import pytest

from kernelwright.problems import Tolerance
from kernelwright.prompts import render
from tests.support.briefs import PROBLEM, brief


def prompt(dtype, target="cuda", **changes):
    problem = PROBLEM.model_copy(update={"dtype": dtype} | changes)
    return render(brief(target=target, problem=problem)).text


def test_without_a_dtype_no_prompt_speaks_of_a_cast():
    assert "cast to" not in prompt(None) and "the cast" not in prompt(None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_contract_says_what_is_cast_and_what_is_not(dtype):
    text = prompt(dtype)
    assert f"Dtype `{dtype}`" in text and "integers and booleans" in text
    assert f"before the cast to `{dtype}`:" in text


@pytest.mark.parametrize(("dtype", "share"), [("float16", "9.8e-04"), ("bfloat16", "7.8e-03")])
def test_the_tolerance_is_that_of_the_narrow_dtype(dtype, share):
    assert "allowed is 4 times" in prompt(dtype)
    assert f"{share} of its largest magnitude" in prompt(dtype)


def test_a_problem_may_state_a_narrower_floor():
    text = prompt("bfloat16", tolerance=Tolerance(floor_ulp=1, reason="stated"))
    assert "0.5 units in the last" in text and "of bf16" in text


@pytest.mark.parametrize("target", ["cpp", "cuda", "triton"])
def test_sums_are_to_be_kept_in_fp32_for_16_bits_alone(target):
    assert "Sums kept in bf16 are not" in prompt("bfloat16", target)
    assert "keep sums in fp32" not in prompt("float32", target)


@pytest.mark.parametrize(
    ("target", "dtype", "hint"),
    [
        ("cuda", "bfloat16", "`__float22bfloat162_rn`"),
        ("cuda", "float16", "`__float22half2_rn`"),
        ("triton", "bfloat16", "`tl.dot` of bf16 blocks"),
        ("tilelang", "bfloat16", "bf16 tiles in shared"),
        ("helion", "float16", "fp16 tiles"),
        ("cute", "bfloat16", "`cutlass.BFloat16`"),
        ("cpp", "bfloat16", "upper half of a float"),
        ("cpp", "float16", "_mm256_cvtph_ps"),
    ],
)  # fmt: skip
def test_the_crib_has_a_hint_for_the_dtype(target, dtype, hint):
    assert hint in prompt(dtype, target) and hint not in prompt(None, target)


@pytest.mark.parametrize(("target", "words"), [("cuda", "fp32 products"), ("triton", "plain fp32 units")])
def test_advice_on_fp32_products_is_left_out(target, words):
    advice = {one.name: one.text for one in render(brief(target=target)).sections}["tuning"]
    narrow = PROBLEM.model_copy(update={"dtype": "bfloat16"})
    told = {one.name: one.text for one in render(brief(target=target, problem=narrow)).sections}["tuning"]
    assert words in advice and words not in told
