import json

import pytest

from tests.support.foreign import PLAIN, write_tree
from tests.support.problems import PROBLEM, RIGHT
from tests.support.servers import fake_reply

pytestmark = pytest.mark.slow
CRASHES = PROBLEM.replace("return torch.cumsum", "raise RuntimeError('no such thing') or torch.cumsum")
HUGE = PROBLEM.replace("torch.cumsum(x, dim=1)", "torch.cumsum(x.repeat(1 << 21, 1), dim=1)")
"""Its result takes 4 TiB, which no machine that runs this has."""
FIVE = {"first": PROBLEM, "crashes": CRASHES, "second": PROBLEM + "\n", "huge": HUGE, "third": PROBLEM + "\n\n"}


@pytest.fixture
def five(tmp_path):
    """Five problem files, two of which cannot be judged, and a right candidate for each."""
    for name, text in FIVE.items():
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / f"{name}.py").write_text(text)
        (tmp_path / "answers" / name).mkdir(parents=True)
        (tmp_path / "answers" / name / "a.py").write_text(RIGHT)
    return tmp_path


@pytest.fixture
def run_of_five(kernelwright, five, model_server):
    server = model_server(fake_reply(RIGHT))
    words = ("--model", "m", "--base-url", server.base_url, "--attempts", 1, "--out", "out")
    return kernelwright("run", *(f"{name}.py" for name in FIVE), *words)


@pytest.mark.long
def test_a_run_goes_on_past_problems_that_can_not_be_judged(kernelwright, run_of_five, five):
    done = run_of_five
    assert done.returncode == 1, done.stdout + done.stderr
    table = done.stdout[done.stdout.rindex("best speedup") :]
    assert "not judged: " in table and "RuntimeError" in table
    assert "not judged: " in table[table.index("huge") :]
    assert {path.name for path in (five / "out/best").iterdir()} == {"first", "second", "third"}
    again = kernelwright("resume", "out", "--json")
    rows = {row["problem"]: row for row in map(json.loads, again.stdout.splitlines())}
    assert again.returncode == 1
    assert [name for name, row in rows.items() if row["fault"]] == ["crashes", "huge"]
    assert all(row["stopped"] for row in rows.values()) and rows["first"]["speedup"]
    tree = kernelwright("show", "out").stdout
    assert tree.count("not judged: ") == 2


@pytest.mark.long
def test_a_batch_goes_on_past_problems_that_can_not_be_judged(kernelwright, five):
    done = kernelwright("score", "tasks", "answers")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashes, 1 file: not" in done.stdout
    assert "huge, 1 file: not" in done.stdout
    assert done.stdout.count("passed, ") == 3
    assert "2 files have no verdict" in done.stdout


@pytest.mark.long
def test_what_a_suite_names_and_can_not_be_read_has_a_line_and_a_row(kernelwright, tmp_path, model_server):
    write_tree(tmp_path / "tree")
    server = model_server(fake_reply(PLAIN.replace("class Model(", "class ModelNew(")))
    words = ("--model", "m", "--base-url", server.base_url, "--attempts", 1, "--out", "out", "--json")
    done = kernelwright("run", "--suite", "tree:level1[1,2]", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    first, left_out = map(json.loads, done.stdout.splitlines())
    assert first["passed"] == 1
    assert (left_out["problem"], left_out["fault"]) == ("tree::level1/2", "broken")
    assert f"level1/2: not judged: {left_out['stopped']}" in done.stderr
    assert len(kernelwright("resume", "out", "--json").stdout.splitlines()) == 2
