"""The briefs that the prompt tests render: one small problem, an attempt that failed and one that passed."""

from kernelwright.problems import Problem
from kernelwright.prompts import Brief, Parent, PastAttempt, Role, Target, TargetVersions, cpu_sheet, device_sheet
from kernelwright.prompts.brief import Baselines

REFERENCE = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** 2


def get_inputs():
    return [torch.randn(64, 1001)]


def get_init_inputs():
    return []
"""

PROBLEM = Problem(name="squared_relu", title="The square of a ReLU", family="activation", size="cpu", source=REFERENCE)
MULTIPLIED = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns, outputs):
        super().__init__()
        self.linear = nn.Linear(columns, outputs)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return [4096, 4096]
"""
PRODUCT = Problem(name="product", title="A linear layer", family="matmul", size="gpu", source=MULTIPLIED)
NORMALISED = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, rate):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(p=rate)

    def forward(self, x):
        return self.dropout(self.norm(x))


def get_inputs():
    return [torch.randn(4, 8, 9, 9)]


def get_init_inputs():
    return [8, 0.0]
"""
BATCH_NORM = Problem(
    name="batch_norm", title="Batch normalisation", family="normalisation", size="cpu", source=NORMALISED
)
CPU = cpu_sheet("Example CPU", 2, ["sse2", "avx2", "fma", "avx512f"], {"L1d": 48 << 10, "L2": 1 << 20, "L3": 32 << 20})
GPU = device_sheet("NVIDIA H200")
BASELINES = Baselines(
    times=("eager: 0.122 ms, at the precision policy above", "eager as shipped: 0.119 ms"),
    roofline=("256 kB to read and 256 kB to write, each once: 0.0300 ms", "a plain copy that moves as many: 0.0390 ms"),
)
OLD_VERSIONS = TargetVersions(python="3.8", torch="1.13", cuda="11.7")

SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return RETURNED\n"
FAILED = Parent(
    number=2,
    source=SOURCE.replace("RETURNED", "x * x"),
    outcome="failed at check",
    evidence="output 0 differs at 31987 of 64064 elements; first at (0, 1): expected 0, got 0.523\n\ninputs: normal",
)
PASSED = Parent(
    number=3,
    source=SOURCE.replace("RETURNED", "x.clamp(min=0).square()"),
    outcome="passed",
    evidence="candidate 0.0814 ms, eager 0.122 ms (interval 1.44 to 1.56)",
    candidate_ms=0.0814,
    speedup=1.5,
)
HISTORY = (
    PastAttempt(
        number=1, role="propose", idea="one pass | fused", outcome="failed at build", detail="'out' undeclared"
    ),
    PastAttempt(number=2, role="repair", idea="one pass", outcome="failed at check", detail="negative inputs\nsquared"),
    PastAttempt(
        number=3, role="repair", idea="clamp first", outcome="passed", detail="", candidate_ms=0.0814, speedup=1.5
    ),
)


def brief(role: Role = "propose", target: Target = "cpp", **changes: object) -> Brief:
    """A brief that holds together for the role; `changes` replace fields."""
    fields: dict[str, object] = {
        "problem": PROBLEM,
        "target": target,
        "role": role,
        "device": CPU if target == "cpp" else GPU,
        "parent": {"propose": None, "repair": FAILED, "improve": PASSED}[role],
        "history": {"propose": (), "repair": HISTORY[:2], "improve": HISTORY}[role],
    }
    return Brief.model_validate(fields | changes)
