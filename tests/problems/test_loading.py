"""Finding a problem by name or path, and the one sentence for each thing that can be wrong."""

from pathlib import Path

import pytest

from kernelwright.problems import ProblemError, catalog_names, load_problem
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


def test_a_name_gives_the_cpu_size_unless_asked() -> None:
    assert load_problem("softmax_rows") == load_problem("softmax_rows", "cpu")


def test_names_are_in_alphabetical_order() -> None:
    assert list(catalog_names()) == sorted(catalog_names())


def test_a_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "softmax_rows").write_text(REFERENCE)
    monkeypatch.chdir(tmp_path)
    assert load_problem("softmax_rows").family == "norm"


def test_a_file_is_named_by_its_stem(file: Path) -> None:
    assert load_problem(str(file)).name == "12_double"


def test_a_file_has_the_size_file(file: Path) -> None:
    assert load_problem(str(file)).size == load_problem(str(file), "file").size == "file"


def test_a_file_keeps_its_text(file: Path) -> None:
    assert load_problem(str(file)).source == REFERENCE


def test_the_docstring_of_a_files_model_is_its_title(file: Path) -> None:
    assert load_problem(str(file)).title == "Doubles its input."


def test_a_file_without_a_docstring_is_titled_by_its_stem(file: Path) -> None:
    file.write_text(REFERENCE.replace('"""Doubles its input."""', ""))
    assert load_problem(str(file)).title == "12_double"


def test_a_file_in_the_current_folder_needs_no_separator(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_problem("12_double.py").name == "12_double"


def test_an_existing_file_needs_no_suffix(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.rename(file.parent / "double")
    monkeypatch.chdir(file.parent)
    assert load_problem("double").name == "double"


def test_windows_newlines_and_a_byte_order_mark_do_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + REFERENCE.replace("\n", "\r\n").encode())
    assert load_problem(str(file)).source == REFERENCE


def test_entry_points_may_stand_under_if_and_come_by_assignment(file: Path) -> None:
    file.write_text(
        REFERENCE.replace("class Model", "class Doubler") + "if True:\n    Model = Doubler\nelse:\n    pass\n"
    )
    assert load_problem(str(file)).name == "12_double"


def test_a_folder_laid_out_as_in_the_catalog_is_a_problem(folder: Path) -> None:
    problem = load_problem(str(folder), "gpu")
    assert (problem.name, problem.title) == ("doubling", "Doubling")
    assert problem.source == REFERENCE.replace("ROWS = 4 ", "ROWS = 400 ")


def test_an_unknown_name_is_told_the_nearest_first_and_then_all() -> None:
    message = refusal("softmx-rows")
    assert "'softmx-rows'" in message and "nearest: softmax_rows" in message
    assert message.endswith(f"there are: {', '.join(catalog_names())}")


def test_a_name_near_to_nothing_is_told_all_names() -> None:
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


def test_a_folder_in_the_current_one_needs_no_separator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert load_problem("doubling") == load_problem("./doubling")


def test_a_name_wins_over_a_folder_of_that_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.parent / "softmax_rows")
    monkeypatch.chdir(folder.parent)
    assert load_problem("softmax_rows").family == "norm"


def test_a_collection_in_the_current_folder_is_told_with_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for name in ("1_double.py", "2_again.py"):
        (level / name).write_text(REFERENCE)
    monkeypatch.chdir(tmp_path)
    assert "2 problems" in refusal("KernelBench") and "KernelBench::level1" in refusal("KernelBench")


def test_a_path_may_be_a_path_object(file: Path, folder: Path) -> None:
    assert load_problem(file) == load_problem(str(file))
    assert load_problem(folder, "gpu") == load_problem(str(folder), "gpu")


@pytest.mark.parametrize("given", [None, 3, b"softmax_rows", ["softmax_rows"]])
def test_what_is_no_name_is_told_in_a_sentence(given: object) -> None:
    with pytest.raises(ProblemError) as caught:
        load_problem(given)  # type: ignore[arg-type]
    assert repr(given) in str(caught.value) and "catalog name" in str(caught.value)


def test_an_unknown_size_is_told_the_sizes() -> None:
    message = refusal("softmax_rows", "tpu")
    assert "'softmax_rows'" in message and "no size 'tpu'" in message and "cpu, gpu" in message


def test_a_file_refuses_a_size(file: Path) -> None:
    assert str(file) in refusal(file, "gpu") and "no size 'gpu'" in refusal(file, "gpu")


@pytest.mark.parametrize("name", ["...py", "a\x1b[2J.py", "a\nb.py"])
def test_a_file_whose_name_is_no_name_is_refused(file: Path, name: str) -> None:
    strange = file.with_name(name)
    strange.write_text(file.read_text())
    with pytest.raises(ProblemError, match="names no problem"):
        load_problem(str(strange))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "no.py")
    assert f"no file {tmp_path / 'no.py'}; " in message and "catalog name" in message


def test_a_folder_without_a_manifest_is_no_file(tmp_path: Path) -> None:
    assert "not a regular file" in refusal(tmp_path)


def test_a_path_that_is_too_long_is_a_sentence() -> None:
    assert "file name too long" in refusal("a/" + "x" * 5000)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that not even root can read")
def test_an_unreadable_file_is_a_sentence() -> None:
    assert "/proc/self/mem: input/output" in refusal("/proc/self/mem")


def test_a_file_that_is_not_utf8_is_told_where(file: Path) -> None:
    file.write_bytes(b"# caf\xe9\n")
    assert f"{file} is not UTF-8" in refusal(file) and "byte 5" in refusal(file)


def test_a_syntax_error_is_told_with_its_line(file: Path) -> None:
    file.write_text(REFERENCE.replace("def get_inputs():", "def get_inputs("))
    assert str(file) in refusal(file) and "on line 15: '('" in refusal(file)


def test_a_nul_byte_is_a_sentence(file: Path) -> None:
    file.write_text(REFERENCE + "\0")
    line = REFERENCE.count("\n") + 1
    assert str(file) in refusal(file) and f"on line {line}: " in refusal(file) and "null bytes" in refusal(file)


def test_nesting_beyond_the_parser_is_a_sentence(file: Path) -> None:
    file.write_text("x = " + "-" * 100_000 + "1\n")
    assert "parsed as Python" in refusal(file)


@pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
def test_a_missing_entry_point_is_named(file: Path, name: str) -> None:
    file.write_text(REFERENCE.replace(f" {name}(", " other("))
    assert refusal(file).startswith(f"{file} has no {name}; add a ")


def test_a_nested_definition_is_no_entry_point(file: Path) -> None:
    file.write_text(REFERENCE.replace("def get_inputs():", "def outer():\n  def get_inputs():"))
    assert refusal(file).startswith(f"{file} has no get_inputs; ")


def test_a_candidate_given_as_a_problem_is_recognised(file: Path) -> None:
    file.write_text(REFERENCE.replace("class Model(", "class ModelNew("))
    assert "defines ModelNew" in refusal(file)


def test_a_constant_that_the_reference_lacks_is_told_with_its_table(folder: Path) -> None:
    (folder / "problem.toml").write_text(MANIFEST.replace("ROWS", "COLS"))
    assert refusal(folder).startswith(f"{folder / 'problem.toml'}, [sizes.cpu]")
    assert "no constant 'COLS'" in refusal(folder)


def test_a_folder_without_a_reference_is_told_the_file(folder: Path) -> None:
    (folder / "reference.py").unlink()
    assert f"there is no file {folder / 'reference.py'}" in refusal(folder)


def test_a_bad_manifest_is_told_with_its_path(folder: Path) -> None:
    (folder / "problem.toml").write_text("family = ")
    assert refusal(folder).startswith(f"{folder / 'problem.toml'} is not valid TOML: ")
