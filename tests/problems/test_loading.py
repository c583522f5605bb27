"""Loading of problems and manifests, and the one sentence for each thing that can be wrong."""

from pathlib import Path

import pytest

from kernelwright.problems import (
    INPUT_DISTRIBUTIONS,
    ExcludedValues,
    ProblemError,
    Tolerance,
    catalog_names,
    load_problem,
)
from kernelwright.problems.loading import parse_manifest
from kernelwright.problems.source_rewriting import put_sizes
from tests.support.problems import MANIFEST

REFERENCE = '''"""A file from elsewhere."""
import torch
import torch.nn as nn

ROWS = 4  # a few


class Model(nn.Module):
    """Doubles its input."""

    def forward(self, x):
        return x + x


def get_inputs():
    return [torch.rand(ROWS, 2)]


def get_init_inputs():
    return []
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "12_double.py"
    path.write_text(REFERENCE)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "doubling"
    path.mkdir()
    (path / "reference.py").write_text(REFERENCE)
    (path / "problem.toml").write_text(MANIFEST)
    return path


def refusal(name_or_path: str | Path, size: str | None = None) -> str:
    with pytest.raises(ProblemError) as caught:
        load_problem(str(name_or_path), size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_in_alphabetical_order_and_give_the_cpu_size_unless_asked() -> None:
    assert list(catalog_names()) == sorted(catalog_names())
    assert load_problem("softmax_rows") == load_problem("softmax_rows", "cpu")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_name_wins_over_a_file_or_a_folder_of_that_name(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = request.getfixturevalue(kind)
    path.rename(path.parent / "softmax_rows")
    monkeypatch.chdir(path.parent)
    assert load_problem("softmax_rows").family == "norm"


def test_a_file_keeps_its_text_and_is_named_by_its_stem_and_titled_by_its_docstring(file: Path) -> None:
    problem = load_problem(str(file))
    assert (problem.name, problem.title, problem.source) == ("12_double", "Doubles its input.", REFERENCE)
    assert problem.size == load_problem(str(file), "file").size == "file"
    assert problem == load_problem(file), "a path may be a path object"
    file.write_text(REFERENCE.replace('"""Doubles its input."""', ""))
    assert load_problem(str(file)).title == "12_double"


@pytest.mark.parametrize("name", ["12_double.py", "double"])
def test_a_file_in_the_current_folder_needs_no_separator_and_no_suffix(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file.rename(file.parent / name)
    monkeypatch.chdir(file.parent)
    assert load_problem(name).name == Path(name).stem


def test_windows_newlines_and_a_byte_order_mark_do_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + REFERENCE.replace("\n", "\r\n").encode())
    assert load_problem(str(file)).source == REFERENCE


def test_entry_points_may_stand_under_if_and_come_by_assignment(file: Path) -> None:
    file.write_text(
        REFERENCE.replace("class Model", "class Doubler") + "if True:\n    Model = Doubler\nelse:\n    pass\n"
    )
    assert load_problem(str(file)).name == "12_double"


def test_a_folder_laid_out_as_in_the_catalog_is_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem(str(folder), "gpu")
    assert (problem.name, problem.title) == ("doubling", "Doubling")
    assert problem.source == REFERENCE.replace("ROWS = 4 ", "ROWS = 400 ")
    assert problem == load_problem(folder, "gpu"), "a path may be a path object"
    monkeypatch.chdir(folder.parent)
    assert load_problem("doubling") == load_problem("./doubling"), "in the current folder it needs no separator"


def test_an_unknown_name_is_told_the_nearest_first_and_then_all() -> None:
    message = refusal("softmx-rows")
    assert "'softmx-rows'" in message and "nearest: softmax_rows" in message
    assert message.endswith(f"there are: {', '.join(catalog_names())}")
    assert refusal("zzz").startswith("no problem 'zzz'") and "nearest" not in refusal("zzz")
    assert refusal("zzz").endswith(": " + ", ".join(catalog_names()))


@pytest.mark.parametrize("name", ["", "x" * 5000, "softmax_rows\0"])
def test_a_strange_name_is_an_unknown_name(name: str) -> None:
    assert refusal(name).startswith(f"no problem {name!r}")


@pytest.mark.parametrize("name", [".", "..", "doubling"])
def test_a_folder_that_holds_no_problem_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here" / "doubling").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert refusal(name).startswith(f"{name} is not a regular file")


def test_a_collection_in_the_current_folder_is_told_with_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for name in ("1_double.py", "2_again.py"):
        (level / name).write_text(REFERENCE)
    monkeypatch.chdir(tmp_path)
    assert "2 problems" in refusal("KernelBench") and "KernelBench::level1" in refusal("KernelBench")


@pytest.mark.parametrize("given", [None, 3, b"softmax_rows", ["softmax_rows"]])
def test_what_is_no_name_is_told_in_a_sentence(given: object) -> None:
    with pytest.raises(ProblemError) as caught:
        load_problem(given)  # type: ignore[arg-type]
    assert repr(given) in str(caught.value) and "catalog name" in str(caught.value)


def test_an_unknown_size_is_told_the_sizes_and_a_file_refuses_any(file: Path) -> None:
    message = refusal("softmax_rows", "tpu")
    assert "'softmax_rows'" in message and "no size 'tpu'" in message and "cpu, gpu" in message
    assert str(file) in refusal(file, "gpu") and "no size 'gpu'" in refusal(file, "gpu")


@pytest.mark.parametrize("name", ["...py", "a\x1b[2J.py", "a\nb.py"])
def test_a_file_whose_name_is_no_name_is_refused(file: Path, name: str) -> None:
    strange = file.with_name(name)
    strange.write_text(file.read_text())
    with pytest.raises(ProblemError, match="names no problem"):
        load_problem(str(strange))


def test_a_missing_file_a_folder_and_a_path_that_is_too_long_are_told_in_a_sentence(tmp_path: Path) -> None:
    message = refusal(tmp_path / "no.py")
    assert f"no file {tmp_path / 'no.py'}; " in message and "catalog name" in message
    assert "not a regular file" in refusal(tmp_path)
    assert "file name too long" in refusal("a/" + "x" * 5000)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that not even root can read")
def test_an_unreadable_file_is_a_sentence() -> None:
    assert "/proc/self/mem: input/output" in refusal("/proc/self/mem")


def test_a_file_that_is_not_utf8_is_told_where(file: Path) -> None:
    file.write_bytes(b"# caf\xe9\n")
    assert f"{file} is not UTF-8" in refusal(file) and "byte 5" in refusal(file)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def get_inputs():", "def get_inputs(", "on line 15: '('"),
        ("    return []\n", "    return []\n\0", "null bytes"),
        ("    return []\n", "    return []\n\0", "on line 21: "),
        ("ROWS = 4", "ROWS = " + "-" * 100_000 + "4", "parsed as Python"),
        ("class Model(", "class ModelNew(", "defines ModelNew"),
        (" Model(", " other(", " has no Model; add a "),
        (" get_inputs(", " other(", " has no get_inputs; add a "),
        (" get_init_inputs(", " other(", " has no get_init_inputs; add a "),
        ("def get_inputs():", "def outer():\n  def get_inputs():", " has no get_inputs; "),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(file: Path, old: str, new: str, said: str) -> None:
    file.write_text(REFERENCE.replace(old, new))
    assert str(file) in refusal(file) and said in refusal(file)


def test_what_is_wrong_in_a_folder_is_told_with_its_file_and_table(folder: Path) -> None:
    manifest, reference = folder / "problem.toml", folder / "reference.py"
    manifest.write_text(MANIFEST.replace("ROWS", "COLS"))
    assert refusal(folder).startswith(f"{manifest}, [sizes.cpu]") and "no constant 'COLS'" in refusal(folder)
    manifest.write_text("family = ")
    assert refusal(folder).startswith(f"{manifest} is not valid TOML: ")
    manifest.write_text(MANIFEST)
    reference.unlink()
    assert f"there is no file {reference}" in refusal(folder)


def manifest_refusal(text: str) -> str:
    with pytest.raises(ProblemError) as caught:
        parse_manifest(text, "problem.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_manifest_has_its_sizes_and_of_what_is_left_out_the_strict_default() -> None:
    manifest = parse_manifest(MANIFEST, "problem.toml")
    assert manifest.sizes == {"cpu": {"ROWS": 4}, "gpu": {"ROWS": 400}}
    assert (manifest.precision, manifest.operators, manifest.direction) == ("strict", "any", "forward")
    assert manifest.tolerance == Tolerance()


def test_a_tolerance_with_its_reason_is_taken() -> None:
    manifest = parse_manifest(MANIFEST + '[tolerance]\nfloor_ulp = 64\nreason = "long sums"\n', "problem.toml")
    assert manifest.tolerance == Tolerance(floor_ulp=64, reason="long sums")


NARROW = MANIFEST + '[values]\nwithout = ["all negative"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MANIFEST + "[tolerance]\nfactor = 100\n", ["[tolerance] departs"]),
        (MANIFEST + '[tolerance]\nfactor = 100\nreason = " "\n', ["add its reason"]),
        ("family = 'toy'\ntitle\n", ["not valid TOML", "line 2, column 6"]),
        (MANIFEST.replace('title = "Doubling"', ""), ["'title' is missing"]),
        ("colour = 1\n" + MANIFEST, ["unknown key 'colour'", "family, title, sizes"]),
        *(
            (MANIFEST + f'[tolerance]\n{name} = {value}\nreason = "r"\n', [f"tolerance.{name}"])
            for name in ("factor", "floor_ulp", "stated.max_atol", "stated.max_rtol")
            for value in ("nan", "inf", "-1.0", "1e9")
        ),
        (MANIFEST + "[tolerance]\nrtol = 0.1\n", ["'tolerance.rtol'", "factor, floor_ulp, "]),
        ('precision = "fp8"\n' + MANIFEST, ["'precision' is 'fp8'", "'tf32' or 'half'"]),
        (MANIFEST.replace("ROWS = 400", 'ROWS = "400"'), ["'sizes.gpu.ROWS' is '400'", "integer"]),
        (MANIFEST.replace("sizes.cpu", "sizes.tpu"), ["no table [sizes.cpu]"]),
        (MANIFEST + "COLS = 3\n", ["COLS is set in only one"]),
        (NARROW, ["[values] excludes", "reason"]),
        (MANIFEST + "[values]\nonly = []\n", ["'values.only'", "without, reason"]),
    ],
)
def test_what_a_manifest_may_not_say_is_told_with_what_it_may(text: str, said: list[str]) -> None:
    message = manifest_refusal(text)
    assert [words for words in said if words not in message] == []


def test_a_problem_may_leave_families_of_values_out_with_a_reason() -> None:
    manifest = parse_manifest(NARROW + 'reason = "a logarithm"\n', "problem.toml")
    assert manifest.values == ExcludedValues(without=("all negative",), reason="a logarithm")


def test_a_family_of_values_that_there_is_not_is_told_those_that_there_are() -> None:
    message = manifest_refusal(NARROW.replace("all negative", "negative") + 'reason = "a logarithm"\n')
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
