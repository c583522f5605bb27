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
