import pytest

from kernelwright.problems import INPUT_DISTRIBUTIONS, ExcludedValues, ProblemError, Tolerance
from kernelwright.problems.loading import parse_manifest
from tests.support.problems import MANIFEST as GOOD


def refusal(text: str) -> str:
    with pytest.raises(ProblemError) as caught:
        parse_manifest(text, "problem.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_manifest_has_its_sizes_and_of_what_is_left_out_the_strict_default() -> None:
    manifest = parse_manifest(GOOD, "problem.toml")
    assert manifest.sizes == {"cpu": {"ROWS": 4}, "gpu": {"ROWS": 400}}
    assert (manifest.precision, manifest.operators, manifest.direction) == ("strict", "any", "forward")
    assert manifest.tolerance == Tolerance()


def test_a_tolerance_with_its_reason_is_taken() -> None:
    manifest = parse_manifest(GOOD + '[tolerance]\nfloor_ulp = 64\nreason = "long sums"\n', "problem.toml")
    assert manifest.tolerance == Tolerance(floor_ulp=64, reason="long sums")


NARROW = GOOD + '[values]\nwithout = ["all negative"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "[tolerance]\nfactor = 100\n", ["[tolerance] departs"]),
        (GOOD + '[tolerance]\nfactor = 100\nreason = " "\n', ["add its reason"]),
        ("family = 'toy'\ntitle\n", ["not valid TOML", "line 2, column 6"]),
        (GOOD.replace('title = "Doubling"', ""), ["'title' is missing"]),
        ("colour = 1\n" + GOOD, ["unknown key 'colour'", "family, title, sizes"]),
        *(
            (GOOD + f'[tolerance]\n{name} = {value}\nreason = "r"\n', [f"tolerance.{name}"])
            for name in ("factor", "floor_ulp", "stated.max_atol", "stated.max_rtol")
            for value in ("nan", "inf", "-1.0", "1e9")
        ),
        (GOOD + "[tolerance]\nrtol = 0.1\n", ["'tolerance.rtol'", "factor, floor_ulp, "]),
        ('precision = "fp8"\n' + GOOD, ["'precision' is 'fp8'", "'tf32' or 'half'"]),
        (GOOD.replace("ROWS = 400", 'ROWS = "400"'), ["'sizes.gpu.ROWS' is '400'", "integer"]),
        (GOOD.replace("sizes.cpu", "sizes.tpu"), ["no table [sizes.cpu]"]),
        (GOOD + "COLS = 3\n", ["COLS is set in only one"]),
        (NARROW, ["[values] excludes", "reason"]),
        (GOOD + "[values]\nonly = []\n", ["'values.only'", "without, reason"]),
    ],
)
def test_what_a_manifest_may_not_say_is_told_with_what_it_may(text: str, said: list[str]) -> None:
    message = refusal(text)
    assert [words for words in said if words not in message] == []


def test_a_problem_may_leave_families_of_values_out_with_a_reason() -> None:
    manifest = parse_manifest(NARROW + 'reason = "a logarithm"\n', "problem.toml")
    assert manifest.values == ExcludedValues(without=("all negative",), reason="a logarithm")


def test_a_family_of_values_that_there_is_not_is_told_those_that_there_are() -> None:
    message = refusal(NARROW.replace("all negative", "negative") + 'reason = "a logarithm"\n')
    assert "'values.without.0'" in message and "'negative'" in message and "'scaled up by 8'," in message
    assert all(f"'{family}'" in message for family in INPUT_DISTRIBUTIONS)
