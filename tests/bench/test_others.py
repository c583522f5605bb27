"""Released kernels: read as problems and candidates, judged, kept, and drawn."""

import json
from pathlib import Path

import pytest
import torch

from bench import others
from bench.others.judging import read
from bench.others.page import Row, add_rows, outcome_of, page, read_rows
from kernelwright.evals.metrics import summarize
from kernelwright.sandbox.verdict.errors import SandboxError
from tests.support.runs import evidence, failed, passed

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = scale

    def forward(self, x):
        return self.linear(x) * self.scale


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32, 0.5]
"""
RIGHT = REFERENCE.replace("class Model(", "class ModelNew(").replace("super()", "super(ModelNew, self)")
FUNCTION = """
def kernel_function(x, weight, bias, scale, out=None):
    return torch.nn.functional.linear(x, weight, bias) * scale
"""


def row(outcome="passed", **changes):
    facts = {
        "source": "CUDA-L1", "name": "level1/1", "digest": "0" * 64, "claimed": 2.5, "way": "kernelwright",
        "accuracy": "default", "effort": "search", "device": "a GPU", "outcome": outcome, "seconds": 3.0,
    }  # fmt: skip
    return Row(**(facts | changes))


def of(verdict, **changes):
    outcome, why = outcome_of(verdict)
    return row(outcome, why=why, verdict=verdict, speedup=summarize(verdict).speedup, **changes)


@pytest.mark.slow
def test_a_release_is_judged_once_and_what_is_wrong_at_one_accuracy_again_at_the_next(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERNELWRIGHT_OUT", str(tmp_path / "out"))
    kernels = {1: RIGHT, 2: RIGHT.replace("* self.scale", "* self.scale * 1.00005"), 3: None, 4: "None"}
    lines = [
        {"level_id": 1, "task_id": task, "ref_code": REFERENCE, "custom_code": kernel, "score_default": 2.0}
        for task, kernel in kernels.items()
    ]
    (tmp_path / "h100.json").write_text("\n".join(map(json.dumps, lines)))
    words = (str(tmp_path / "h100.json"), "--device", "cpu", "--effort", "screen")
    report = others.run(*words)
    found = {(one.name, one.accuracy): one for one in read_rows(tmp_path / "out" / "others.jsonl")}
    assert found["level1/1", "default"].outcome == "passed" and report.holds
    assert found["level1/2", "default"].outcome == "failed: check"
    assert found["level1/2", "kernelbench"].outcome == "passed"
    assert found["level1/2", "default"].verdict.reason and {name for name, _ in found} == {"level1/1", "level1/2"}
    capsys.readouterr()
    others.run(*words)
    assert "level1" not in capsys.readouterr().out, "nothing is judged twice"


def test_a_function_with_weights_and_numbers_as_arguments_stands_in_for_its_model(tmp_path):
    folder = tmp_path / "L2" / "7_Linear_Scale"
    folder.mkdir(parents=True)
    (folder / "original.py").write_text(REFERENCE)
    (folder / "kernel_code.py").write_text(FUNCTION)
    (one,) = read(tmp_path)
    assert (one.source, one.name, one.problem.dtype) == ("KernelAgent", "level2/7", "bfloat16")
    made = {}
    exec(one.kernel, made)
    torch.manual_seed(1)
    reference = made["Model"](32, 0.5)
    torch.manual_seed(1)
    x = torch.randn(4, 32)
    torch.manual_seed(1)
    assert torch.equal(made["ModelNew"](32, 0.5)(x), reference(x))


def test_what_is_no_release_is_refused(tmp_path):
    with pytest.raises(SandboxError, match="not a release"):
        read(tmp_path)


def test_a_judging_tells_of_other_accuracies_only_what_it_saw():
    right = passed(2.0)
    seen = evidence().model_copy(
        update={"accuracy": "default", "errors": {"max": 0.5}, "errors_allowed": {"ieee": {"max": 1.0}, "tf32": {}}}
    )
    good = of(right.model_copy(update={"evidence": seen}))
    assert [good.meets(one) for one in ("default", "ieee", "tf32", "kernelbench")] == [True, True, None, None]
    wrong, broken = of(failed("check")), of(failed("build"))
    assert [wrong.meets(one) for one in ("default", "kernelbench")] == [False, None]
    assert broken.meets("kernelbench") is False, "what does not compile is right at no accuracy"
    assert row("not judged").meets("default") is None


def test_the_last_judging_of_a_kind_is_kept_and_the_page_shows_its_figures(tmp_path):
    records, more = tmp_path / "kept.jsonl.gz", tmp_path / "more.jsonl"
    first, second = of(passed(2.0, spread=0.0)), of(passed(3.0, spread=0.0))
    theirs = row("passed", way="KernelBench", accuracy=None, effort=None, speedup=1.4)
    more.write_text("".join(one.model_dump_json() + "\n" for one in (first, theirs, second)))
    kept = add_rows([more], records)
    assert kept == add_rows([], records) == read_rows(records) and len(kept) == 2
    (line,) = [line for line in page(kept).splitlines() if line.startswith("| level1/1 |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "2.50" and cells[5] == "right, 1.40"
    assert cells[9].startswith(f"{second.verdict.measurement.speedup:.2f} [") and cells[11] == "faster"


def test_a_failure_counts_as_one_in_the_mean_and_says_why():
    text = page([of(passed(4.0, spread=0.0)), of(failed("check"), name="level1/2")])
    assert "| CUDA-L1 | 2 of 210 |" in text and text.count("2.00 |") >= 1
    assert "failed: check" in next(line for line in text.splitlines() if line.startswith("| level1/2 |"))


def test_the_page_that_ships_is_drawn_from_the_records_that_ship():
    root = Path(__file__).parents[2]
    assert (root / "docs" / "others.md").read_text() == page(add_rows([]))
