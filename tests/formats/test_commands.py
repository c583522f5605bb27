import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from kernelwright.evals.formats.kernelbench import read_run
from tests.support.commands import run_with
from tests.support.foreign import PLAIN, read_baselines, read_eval_results, read_rows, write_robust, write_tree
from tests.support.problems import PROBLEM, RIGHT, WRONG
from tests.support.servers import fake_reply, http_stub


def kernelwright(folder, *words, **environment):
    # A timing lock of its own: it does not wait for other timing on this machine.
    return run_with(folder, *words, **{"TMPDIR": str(folder)} | environment)


def test_a_tree_is_imported_with_a_line_for_each_problem(tmp_path):
    write_tree(tmp_path / "KernelBench")
    done = kernelwright(tmp_path, "import", "KernelBench", "ours")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert [line for line in lines if "level1/10: read" in line and "problems/level1/10_Ten" in line]
    assert [line for line in lines if "level1/2: broken" in line and "get_inputs" in line]
    assert "1 problems broken" in last and "3 problems read" in last


def test_a_selection_is_imported_and_told_as_json(tmp_path):
    write_tree(tmp_path / "KernelBench")
    done = kernelwright(tmp_path, "import", "KernelBench", "ours", "--only", "level2", "--json")
    (line,) = map(json.loads, done.stdout.splitlines())
    told = {"kind": "problem", "id": "level2/3", "status": "read", "why": "", "notes": []}
    assert line == told | {"path": "problems/level2/3_Triple"}


def test_solutions_become_candidates_for_every_workload_of_their_definition(tmp_path):
    from tests.formats.test_foreign_results import SOLUTION
    from tests.support.foreign import WORKLOAD, write_trace_set

    write_trace_set(tmp_path / "set", [WORKLOAD, WORKLOAD | {"uuid": "other-one", "axes": {"rows": 8}}])
    (tmp_path / "set/solutions/me").mkdir(parents=True)
    (tmp_path / "set/solutions/me/mine.json").write_text(json.dumps(SOLUTION))
    done = kernelwright(tmp_path, "import", "set", "ours")
    assert done.returncode == 0, done.stderr
    problems = {path.parent.name for path in (tmp_path / "ours/problems").rglob("problem.toml")}
    candidates = {path.parent.name for path in (tmp_path / "ours/candidates").rglob("mine.py")}
    assert problems == candidates and len(problems) == 2


@pytest.mark.long
@pytest.mark.slow
def test_imported_solutions_are_judged_like_any_candidate(tmp_path):
    from tests.support.foreign import RMS, WORKLOAD, write_trace_set

    write_trace_set(tmp_path / "set", [WORKLOAD])
    (tmp_path / "set/solutions").mkdir()
    for name, body in (("right", "norm(x, weight, eps)"), ("wrong", "norm(x, weight, eps) * 1.01")):
        main = f"from part import norm\n\ndef run(x, weight, eps, y):\n    y.copy_({body})\n"
        texts = {"main.py": main, "part.py": RMS.replace("def run", "def norm")}
        files = [{"path": path, "content": text} for path, text in texts.items()]
        spec = {"entry_point": "main.py::run", "destination_passing_style": True}
        content = {"name": name, "definition": "rms_norm_h64", "spec": spec, "sources": files}
        (tmp_path / f"set/solutions/{name}.json").write_text(json.dumps(content))
    assert kernelwright(tmp_path, "import", "set", "ours").returncode == 0
    done = kernelwright(tmp_path, "score", "ours/problems", "ours/candidates", "--json")
    found = {Path(line["candidate"]).stem: line["outcome"] for line in map(json.loads, done.stdout.splitlines())}
    assert found == {"right": "passed", "wrong": "failed"}, done.stderr


def test_a_machine_without_the_library_for_a_format_is_told_how_to_get_it(tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without/pyarrow.py").write_text("raise ImportError")
    (tmp_path / "rows.parquet").write_bytes(b"")
    done = kernelwright(tmp_path, "import", "rows.parquet", "ours", PYTHONPATH=str(tmp_path / "without"))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "pyarrow" in done.stderr and "'kernelwright[data]'" in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "level1").mkdir()
    (folder / "level1/7_Sum.py").write_text(PROBLEM)
    with http_stub(fake_reply(WRONG), fake_reply(RIGHT)) as server:
        words = ("run", "level1/7_Sum.py", "--model", "m", "--base-url", server.base_url, "--attempts", "2")
        short = ("--set", "measure=false", "--set", "confirm=0")
        done = kernelwright(folder, *words, *short, "--out", "r", OPENAI_API_KEY="none")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_a_run_is_exported_as_json_lines_with_every_key_known(run):
    done = kernelwright(run, "export", "r", "-")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert ({row["outcome"] for row in rows}, {row["target"] for row in rows}) == ({"failed", "passed"}, {"level1/7"})
    assert all(row["model"] for row in rows) and len({tuple(row) for row in rows}) == 1
    assert kernelwright(run, "export", "r", "/dev/null").returncode == 2


@pytest.mark.slow
def test_rows_are_the_same_as_parquet_and_as_a_data_set(run):
    for words in (("rows.jsonl",), ("rows.parquet", "--to", "parquet"), ("hub", "--to", "huggingface")):
        assert kernelwright(run, "export", "r", *words).returncode == 0
    rows = read_rows(run / "rows.jsonl")
    assert pyarrow.parquet.read_table(run / "rows.parquet").to_pylist() == rows
    assert read_rows(run / "hub/data/train.jsonl") == rows
    card = (run / "hub/README.md").read_text()
    assert card.startswith("---\nconfigs:") and "data/train.jsonl" in card


@pytest.mark.slow
def test_a_run_feeds_kernelbenchs_own_files(run):
    assert kernelwright(run, "export", "r", "bench", "--to", "kernelbench").returncode == 0
    results = read_eval_results(run / "bench/eval_results.json")
    assert [(one.sample_id, one.correctness) for one in results["7"]] == [(0, False), (1, True)]
    assert list(read_baselines(run / "bench/timing/baseline_time_torch.json")["level1"]) == ["7_Sum.py"]
    assert len(read_run(run / "bench").samples) == 2


@pytest.mark.slow
def test_a_run_without_a_definition_has_no_traces(run):
    done = kernelwright(run, "export", "r", "traces", "--to", "flashinfer")
    assert done.returncode == 1 and "no definition" in done.stderr


@pytest.fixture(scope="module")
def kept(run):
    done = kernelwright(run, "export", "r", "--best", "kept")
    assert done.returncode == 0, done.stderr
    (folder,) = (run / "kept").iterdir()
    return folder


@pytest.mark.slow
def test_the_best_kernel_is_the_right_one_with_its_verdict(kept):
    assert (kept / "candidate.py").read_text().strip() == RIGHT.strip()
    found = json.loads((kept / "verdict.json").read_text())
    assert (found["outcome"], found["attempt"]) == ("passed", 2) and found["samples"]


@pytest.mark.long
@pytest.mark.slow
def test_the_best_kernel_can_be_tried_by_itself_and_is_verified_by_the_command_of_its_readme(kept):
    done = subprocess.run([sys.executable, "use.py"], cwd=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    readme = (kept / "README.md").read_text()
    (command,) = [line for line in readme.splitlines() if line.startswith("kernelwright ")]
    done = kernelwright(kept, *command.split()[1:])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_best_kernel_can_be_put_into_a_model(kept):
    code = (
        "import torch; from torch import nn; from use import load, replace\n"
        "model = nn.Sequential(nn.Identity(), nn.Identity()); replace(model, '1', load())\n"
        "assert torch.equal(model(torch.ones(2, 3)), torch.tensor([[1., 2, 3]] * 2))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_someone_elses_run_folder_is_imported_scored_and_handed_back(tmp_path):
    write_tree(tmp_path / "KernelBench")
    theirs = tmp_path / "runs/theirs"
    theirs.mkdir(parents=True)
    right = PLAIN.replace("class Model(", "class ModelNew(")
    (theirs / "level_1_problem_1_sample_0_kernel.py").write_text(right)
    (theirs / "level_1_problem_10_sample_0_kernel.py").write_text(right.replace("x + x", "x"))
    for source in ("KernelBench", "runs/theirs"):
        assert kernelwright(tmp_path, "import", source, "ours").returncode == 0
    score = kernelwright(tmp_path, "score", "ours/problems", "ours/candidates", "--out", "scores")
    assert score.returncode == 0, score.stdout + score.stderr
    places = ("--problems", "ours/problems", "--candidates", "ours/candidates")
    done = kernelwright(tmp_path, "export", "scores", "back", "--to", "kernelbench", *places)
    assert done.returncode == 0, done.stderr
    results = read_eval_results(tmp_path / "back/eval_results.json")
    assert {key: [one.correctness for one in found] for key, found in results.items()} == {"1": [True], "10": [False]}
    baselines = read_baselines(tmp_path / "back/timing/baseline_time_torch.json")
    assert list(baselines["level1"]) == ["1_Double.py"]


@pytest.mark.long
@pytest.mark.slow
def test_a_configuration_of_a_task_is_judged_by_its_address(tmp_path):
    write_robust(tmp_path / "theirs")
    (tmp_path / "candidate.py").write_text("import torch.nn as nn\n\nclass ModelNew(nn.Linear):\n    pass\n")
    done = kernelwright(tmp_path, "judge", "theirs::tasks/linear/3", "candidate.py", "--json")
    assert json.loads(done.stdout)["outcome"] == "passed", done.stdout + done.stderr
