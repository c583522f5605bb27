"""Small collections in the formats of other benchmarks, verdicts for their writers, and readers of the results."""

import json
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.evals.formats.kernelbench import EvalResult, TimeStats
from kernelwright.evals.formats.samples import Outcome, sample_of, target_of
from kernelwright.problems import Problem
from kernelwright.problems.formats import read_collection
from kernelwright.sandbox.verdict.verdicts import Authenticity, Evidence, Failed, Measurement, Pairing, Passed

PLAIN = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """Doubles its input."""

    def forward(self, x):
        return x + x

batch, features = 4, 8

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return []
'''
RMS = """import torch

def run(x, weight, eps):
    norm = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (x.float() * norm * weight.float()).to(x.dtype)
"""
DEFINITION = {
    "name": "rms_norm_h64",
    "op_type": "rmsnorm",
    "description": "Root-mean-square norm.",
    "axes": {
        "rows": {"type": "var", "description": "tokens"},
        "half": {"type": "const", "value": 32},
        "hidden": {"type": "expr", "expression": "half * 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "weight": {"shape": ["hidden"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "float32"}},
    "reference": RMS,
    "tags": ["status:verified"],
    "constraints": ["hidden == 2 * half", "rows > 0"],
}
WORKLOAD = {
    "uuid": "6120f144-b973-4bd9-b884-77ecb132914e",
    "axes": {"rows": 32},
    "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-06}},
}
TOLERANCE = {"max_atol": 0.001, "max_rtol": 0.01, "required_matched_ratio": 0.99, "max_error_cap": 0.5}
FUNCTIONAL = '''import torch
import torch.nn as nn
import torch.nn.functional as F


def forward_fn(x, weight, bias):
    return F.linear(x, weight, bias)


class Model(nn.Module):
    """A linear layer."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        layer = nn.Linear(in_features, out_features, bias=bias)
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.bias)


def get_inputs(batch_size=4, in_features=8):
    return (torch.randn(batch_size, in_features),)


input_names = ["x"]
'''
CONFIGURATIONS = {
    "single_input_configs": [{"batch_size": 16}],
    "single_init_configs": [{"out_features": 32}],
    "single_shared_configs": [{"in_features": 64}],
    "multi_input_configs": [{"batch_size": 16}, {"batch_size": 24}],
    "multi_init_configs": [{"out_features": 32}, {"out_features": 48, "bias": True}],
    "multi_shared_configs": [{"in_features": 64}],
}
TASK = """description: |
  Sorts a vector.
files:
  - {name: submission.py, source: "@SUBMISSION@"}
  - {name: task.py, source: task.py}
  - {name: reference.py, source: reference.py}
lang: py
config: {main: eval.py}
tests:
  - {size: 64, seed: 1}
benchmarks:
  - {size: 256, seed: 7}
  - {size: 512, seed: 8}
ranking_by: geom
"""
TASK_TYPES = "import torch\n\ninput_t = output_t = torch.Tensor\n"
TASK_REFERENCE = """import torch
from task import input_t, output_t


def generate_input(size: int, seed: int) -> input_t:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator)


def ref_kernel(data: input_t) -> output_t:
    return torch.sort(data)[0]
"""


def write_tree(root: Path) -> Path:
    texts = {
        "level1/1_Double.py": PLAIN,
        "level1/2_Broken_.py": PLAIN.replace("def get_inputs", "def inputs"),
        "level1/10_Ten.py": PLAIN,
        "level1/notes.py": "",
        "level2/3_Triple.py": PLAIN.replace("x + x", "x * 3"),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def rows() -> list[dict[str, object]]:
    """The same as rows of the data set."""
    return [
        {"code": PLAIN, "level": 1, "name": "1_Double", "problem_id": 1},
        {"code": PLAIN.replace("x + x", "x * 3"), "level": 2, "name": "3_Triple", "problem_id": 3},
    ]


def write_trace_set(root: Path, workloads: list[dict[str, object]] | None = None) -> Path:
    """FlashInfer-Trace: a definition and its workloads as traces without a solution."""
    definition = root / "definitions/rmsnorm/rms_norm_h64.json"
    lines = root / "workloads/rmsnorm/rms_norm_h64.jsonl"
    traces = [
        {"definition": "rms_norm_h64", "workload": workload, "solution": None, "evaluation": None}
        for workload in workloads or [WORKLOAD]
    ]
    for path, text in ((definition, json.dumps(DEFINITION)), (lines, "\n".join(map(json.dumps, traces)))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write_sol(root: Path, definition: dict[str, object], workloads: list[dict[str, object]]) -> Path:
    """SOL-ExecBench: one folder with a definition and its workloads."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "definition.json").write_text(json.dumps(definition))
    (root / "workload.jsonl").write_text("\n".join(map(json.dumps, workloads)))
    return root


def write_robust(root: Path) -> Path:
    """robust-kbench: one task with four configurations."""
    folder = root / "tasks/linear"
    folder.mkdir(parents=True)
    (folder / "func_forward.py").write_text(FUNCTIONAL)
    (folder / "config_forward.json").write_text(json.dumps(CONFIGURATIONS))
    return root


def write_task(root: Path, task: str = TASK) -> Path:
    folder = root / "sort_v2"
    folder.mkdir(parents=True)
    for name, text in (("task.yml", task), ("task.py", TASK_TYPES), ("reference.py", TASK_REFERENCE)):
        (folder / name).write_text(text)
    return root


CANDIDATE = PLAIN.replace("class Model(", "class ModelNew(")
DEVICE = "a processor"
TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def evidence():
    return Evidence(
        jail=("none",), seconds={}, authenticity=Authenticity(label="custom"), problem_status=None,
        versions={"torch": "2.13"},
    )  # fmt: skip


def passed(speedup: float = 2.0) -> Passed:
    candidate = (1.0, 1.5, 1.0, 1.25)
    eager = tuple(speedup * 2 * ms for ms in candidate)
    compiled = tuple(speedup * ms for ms in candidate)
    pairings = (
        Pairing(baseline="eager", candidate_ms=candidate, baseline_ms=eager),
        Pairing(baseline="torch.compile default", candidate_ms=candidate, baseline_ms=compiled),
    )
    return Passed(measurement=Measurement(pairings=pairings, threads=2), evidence=evidence())


def failed(stage: str = "check") -> Failed:
    return Failed(stage=stage, reason=f"wrong at {stage}", log="the log", evidence=evidence())


def outcome(problem: Problem, verdict, number: int = 0, source: str = CANDIDATE) -> Outcome:
    return Outcome(sample_of(target_of(problem), source, number), verdict, problem, DEVICE, TIME)


def tree_problems(root) -> dict[str, Problem]:
    return {entry.id: entry.problem for entry in read_collection(write_tree(root)).entries if entry.problem}


def trace_problem(root) -> Problem:
    (entry,) = read_collection(write_trace_set(root)).entries
    return entry.problem


def read_eval_results(path):
    """KernelBench's results, by number of the problem."""
    found = json.loads(path.read_text())
    return {key: [EvalResult.model_validate(one) for one in results] for key, results in found.items()}


def read_baselines(path):
    """KernelBench's baseline times, by level and file of the problem."""
    return {
        level: {title: TimeStats.model_validate(time) for title, time in problems.items()}
        for level, problems in json.loads(path.read_text()).items()
    }


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
