import pytest

from kernelwright.problems import INPUT_DISTRIBUTIONS, ExcludedValues, ProblemError, Tolerance
from kernelwright.problems.loading import parse_manifest
from kernelwright.problems.source_rewriting import put_sizes
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


USED = "ROWS = 16\n\n\ndef f(ROWS=16):\n    ROWS = 16\n    return ROWS\n"
ODD_ENDS = '"""a\x0cb\u2028c"""\nROWS = 16\n'


@pytest.mark.parametrize(
    ("source", "values", "found"),
    [
        ("ROWS = 16  # rows\nCOLS=3\n", {"ROWS": 4096}, "ROWS = 4096  # rows\nCOLS=3\n"),
        ("A = 1\nB = 22222\nC = 3\n", {"C": 333, "A": 1000, "B": 2}, "A = 1000\nB = 2\nC = 333\n"),
        ("A = 1; B = 2\n", {"A": 10, "B": 20}, "A = 10; B = 20\n"),
        ('NOTE = "größe"; ROWS = 16\n', {"ROWS": 8}, 'NOTE = "größe"; ROWS = 8\n'),
        (ODD_ENDS, {"ROWS": 8}, ODD_ENDS.replace("16", "8")),
        ("ROWS: int = 16\n", {"ROWS": 8}, "ROWS: int = 8\n"),
        ("DIM = -1\n", {"DIM": -2}, "DIM = -2\n"),
        (USED, {"ROWS": 8}, USED.replace("16", "8", 1)),
        ("ROWS = 16\n", {}, "ROWS = 16\n"),
    ],
    ids=[
        "a comment that stays",
        "several, whatever their lengths",
        "two on one line",
        "letters beyond ASCII",
        "a form feed and a line separator, which are no line ends",
        "an annotated constant",
        "a negative value",
        "a use of the name, which is left alone",
        "no values",
    ],
)
def test_a_literal_is_replaced_where_it_stands(source: str, values: dict[str, int], found: str) -> None:
    assert put_sizes(source, values) == found


@pytest.mark.parametrize(
    ("source", "values", "said"),
    [
        ("ROWS = 16\nBATCH = 1\n", {"COLS": 1}, r"'COLS'.* BATCH, ROWS"),
        ("ROWS = 4 * 4\n", {"ROWS": 8}, "no constant 'ROWS'"),
        ("ROWS = 16\n\nROWS = 8\n", {"ROWS": 4}, "'ROWS' on lines 1 and 3"),
    ],
    ids=["absent", "computed", "set twice"],
)
def test_a_constant_that_is_not_set_once_by_a_literal_is_refused(
    source: str, values: dict[str, int], said: str
) -> None:
    with pytest.raises(ProblemError, match=said):
        put_sizes(source, values)
