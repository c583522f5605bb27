"""The problems of the results were fixed by a rule, and nothing else is run."""

import shlex
import subprocess
import sys
import tomllib

import pytest
import typer

from bench.results.keeping import commands, copy_chosen, read_selection
from kernelwright.cli import app
from kernelwright.problems import ProblemError
from tests.bench.results.walk import ROOT, Walk

SHIPPED = ROOT / "results"
SIZES = {"level1": 100, "level2": 100, "level3": 50}
"""Problems of each level of the benchmark."""


def by_the_rule():
    return [f"{level}/{number}" for level, count in SIZES.items() for number in range(1, count + 1) if number % 10 == 5]


def test_the_rule_gives_the_list():
    selection = read_selection(SHIPPED)
    assert list(selection.problems) == by_the_rule() == selection.asked("float32")
    assert selection.asked("bfloat16") == [one for one in by_the_rule() if not one.startswith("level3")]
    assert (len(selection.asked("float32")), len(selection.asked("bfloat16"))) == (25, 20)


def test_each_is_named_by_its_file_and_digest_and_nothing_else_of_it_is_there():
    problems = tomllib.loads((SHIPPED / "selection.toml").read_text())["problems"]
    for address, chosen in problems.items():
        assert set(chosen) == {"file", "sha256", "dtypes"} and len(chosen["sha256"]) == 64
        assert chosen["file"].startswith(f"{address.partition('/')[2]}_")


@pytest.fixture
def walk(tmp_path):
    found = Walk(tmp_path)
    found.lay_out()
    return found


def test_a_checkout_with_another_text_is_refused_by_name(walk):
    (walk.tree / "level2/5_min_max.py").write_text("# another\n")
    with pytest.raises(ProblemError, match=r"another level2/5.*commit 0000000"):
        copy_chosen(read_selection(walk.results), walk.tree, walk.root / "chosen")


def test_the_chosen_are_laid_out_alone_and_each_dtype_has_its_run(walk):
    (walk.tree / "level1/4_other.py").write_text("# not chosen\n")
    selection = read_selection(walk.results)
    copy_chosen(selection, walk.tree, walk.root / "chosen")
    assert sorted(path.name for path in (walk.root / "chosen").rglob("*.py")) == [
        "15_sum_rows.py", "5_max_rows.py", "5_min_max.py",
    ]  # fmt: skip
    plain, cast = commands(selection, walk.root / "chosen", walk.runs, "a model, 2026-11-22")
    assert f"{walk.root}/chosen:level1[5,15],level2[5]'" in plain
    assert f"{walk.root}/chosen:level1[15]'" in cast and "--dtype bfloat16" in cast
    assert "--model 'a model, 2026-" in plain


def test_what_the_shipped_selection_runs_are_commands_of_ours(tmp_path):
    command = typer.main.get_command(app).commands["run"]
    for line in commands(read_selection(SHIPPED), tmp_path, tmp_path, "a model, 2026-11-22"):
        command.make_context("run", shlex.split(line)[2:])


def test_without_a_run_it_says_in_one_sentence_what_is_missing_and_draws_nothing(tmp_path):
    (tmp_path / "selection.toml").write_text((SHIPPED / "selection.toml").read_text())
    words = ["draw", "--folder", str(tmp_path), "--docs", str(tmp_path / "docs")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.results", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and f"{tmp_path} holds no run" in done.stderr
    assert "bench.results keep RUN" in done.stderr
    assert not (tmp_path / "docs").exists()
