"""What `problem.toml` may say, and the sentence for what it may not."""

import pytest

from kernelwright.problems import VALUE_FAMILIES, ExcludedValues, ProblemError, Tolerance
from kernelwright.problems.loading import parse_manifest
from tests.support.problems import MANIFEST as GOOD


def refusal(text: str) -> str:
    with pytest.raises(ProblemError) as caught:
        parse_manifest(text, "problem.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_manifest_has_its_sizes() -> None:
    assert parse_manifest(GOOD, "problem.toml").sizes == {"cpu": {"ROWS": 4}, "gpu": {"ROWS": 400}}


def test_what_is_left_out_has_the_strict_default() -> None:
    manifest = parse_manifest(GOOD, "problem.toml")
    assert (manifest.precision, manifest.operators, manifest.direction) == ("strict", "any", "forward")
    assert manifest.tolerance == Tolerance()


def test_a_tolerance_with_its_reason_is_taken() -> None:
    manifest = parse_manifest(GOOD + '[tolerance]\nfloor_ulp = 64\nreason = "long sums"\n', "problem.toml")
    assert manifest.tolerance == Tolerance(floor_ulp=64, reason="long sums")


def test_a_tolerance_without_a_reason_is_refused() -> None:
    assert "[tolerance] departs" in refusal(GOOD + "[tolerance]\nfactor = 100\n")


def test_a_blank_reason_is_no_reason() -> None:
    assert "add its reason" in refusal(GOOD + '[tolerance]\nfactor = 100\nreason = " "\n')


def test_text_that_is_no_toml_is_told_with_its_line() -> None:
    message = refusal("family = 'toy'\ntitle\n")
    assert "not valid TOML" in message and "line 2, column 6" in message


def test_a_missing_key_is_named() -> None:
    assert "'title' is missing" in refusal(GOOD.replace('title = "Doubling"', ""))


def test_an_unknown_key_is_told_the_known_ones() -> None:
    message = refusal("colour = 1\n" + GOOD)
    assert "unknown key 'colour'" in message and "family, title, precision," in message


def test_an_unknown_key_of_the_tolerance_is_told_the_known_ones() -> None:
    message = refusal(GOOD + "[tolerance]\nrtol = 0.1\n")
    assert "'tolerance.rtol'" in message and "factor, floor_ulp, " in message


def test_an_unknown_policy_is_told_the_choices() -> None:
    message = refusal('precision = "fp8"\n' + GOOD)
    assert "'precision' is 'fp8'" in message and "'tf32' or 'half'" in message


def test_a_size_that_is_no_whole_number_is_named() -> None:
    message = refusal(GOOD.replace("ROWS = 400", 'ROWS = "400"'))
    assert "'sizes.gpu.ROWS' is '400'" in message and "integer" in message


def test_a_manifest_without_a_cpu_size_is_refused() -> None:
    assert "no table [sizes.cpu]" in refusal(GOOD.replace("sizes.cpu", "sizes.tpu"))


def test_sizes_that_set_different_constants_are_refused() -> None:
    assert "COLS is set in only one" in refusal(GOOD + "COLS = 3\n")


NARROW = GOOD + '[values]\nwithout = ["all negative"]\n'


def test_a_problem_may_leave_families_of_values_out_with_a_reason() -> None:
    manifest = parse_manifest(NARROW + 'reason = "a logarithm"\n', "problem.toml")
    assert manifest.values == ExcludedValues(without=("all negative",), reason="a logarithm")


def test_families_of_values_left_out_without_a_reason_are_refused() -> None:
    assert "[values] leaves" in refusal(NARROW) and "reason" in refusal(NARROW)


def test_a_family_of_values_that_there_is_not_is_told_those_that_there_are() -> None:
    message = refusal(NARROW.replace("all negative", "negative") + 'reason = "a logarithm"\n')
    assert "'values.without.0'" in message and "'negative'" in message and "'scaled up by 8'," in message
    assert all(f"'{family}'" in message for family in VALUE_FAMILIES)


def test_an_unknown_key_of_the_values_is_told_the_known_ones() -> None:
    message = refusal(GOOD + "[values]\nonly = []\n")
    assert "'values.only'" in message and "without, reason" in message
