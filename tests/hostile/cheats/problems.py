"""Small problems that cheats and honest candidates answer: catalog problems at small sizes, and a few of their own."""

import textwrap
from functools import cache
from typing import NamedTuple

from kernelwright.problems import Problem, load_problem
from kernelwright.problems.source_rewriting import put_sizes
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.support.efforts import at_asked_effort

CORPUS = at_asked_effort(
    JudgeSettings(
        threads=2,
        warm_up=1,
        worker_pairs=2,
        min_pairs=16,
        max_pairs=16,
        call_timeout_s=4,
        build_timeout_s=120,
        memory_bytes=2 * 2**30,
        processes=128,
    )
)
"""Few pairs, but enough for every family of values to come up."""

MODEL = """
import base64, ctypes, functools, gc, itertools, json, os, signal, statistics, sys, threading, time, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

{top}

class ModelNew(nn.Module):
{init}
        self.calls, self.kept, self.last = 0, {{}}, None
{constructor}

    def right(self, {inputs}):
{right}

    def forward(self, {inputs}):
{forward}
"""


class Posed(NamedTuple):
    """A problem, and a right way to compute it that cheats lean on."""

    problem: Problem
    init: str
    inputs: str
    right: str

    def source(self, forward: str, constructor: str = "pass", top: str = "", init: str = "") -> str:
        """A candidate; `self.right` computes what is asked, `self.calls` counts if it is told to."""
        return MODEL.format(
            top=textwrap.dedent(top),
            init=_block(init or self.init, 4),
            constructor=_block(constructor, 8),
            inputs=self.inputs,
            right=_block(self.right, 8),
            forward=_block(forward, 8),
        )

    def candidate(self, forward: str, constructor: str = "pass", top: str = "", init: str = "") -> Candidate:
        """The same as a record."""
        return Candidate(source=self.source(forward, constructor, top, init))


def _block(text: str, width: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip(), width * " ")


INIT = """
def __init__(self, *arguments):
    super().__init__()
"""
WEIGHTED = """
def __init__(self, columns):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(columns))
    self.bias = nn.Parameter(torch.zeros(columns))
"""
RMS = """
def __init__(self, features, epsilon):
    super().__init__()
    self.epsilon = epsilon
    self.weight = nn.Parameter(torch.ones(features))
"""
CONVOLUTION = """
def __init__(self, *arguments):
    super().__init__()
    self.layer = nn.ConvTranspose2d(*arguments, bias=False)
"""
COUNTED = """
def __init__(self):
    super().__init__()
    self.scale = nn.Parameter(torch.ones(24))
    self.register_buffer("total", torch.zeros(48, 24))
"""
STEPPED = """
def __init__(self):
    super().__init__()
    self.register_buffer("step", torch.zeros(64))
"""
WEIGHED = """
def __init__(self):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(64))
"""
LINEAR = """
def __init__(self, inner, columns):
    super().__init__()
    self.layer = nn.Linear(inner, columns)
"""

TEXTS = {
    "weighted": (
        """
        class Model(nn.Module):
            def __init__(self, columns):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(columns))
                self.bias = nn.Parameter(torch.zeros(columns))

            def forward(self, x):
                return torch.cumsum(x * self.weight + self.bias, dim=1)
        """,
        "[torch.randn(32, 72)]",
        "[72]",
    ),
    "positive": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.relu(x)
        """,
        "[torch.rand(32, 80)]",
        "[]",
    ),
    "whole": (
        """
        class Model(nn.Module):
            def forward(self, a, b):
                return a @ b
        """,
        "[torch.randint(0, 2, (24, 96)).float(), torch.randint(0, 2, (96, 80)).float()]",
        "[]",
    ),
    "doubles": (
        """
        class Model(nn.Module):
            def forward(self, a, b):
                return a @ b
        """,
        "[torch.randn(48, 96, dtype=torch.float64), torch.randn(96, 80, dtype=torch.float64)]",
        "[]",
    ),
    "slopes": (
        """
        class Model(nn.Module):
            def forward(self, a, b, c, d):
                return (a @ b) / (c - d)
        """,
        "[torch.randn(1, 128, 128) for _ in range(4)]",
        "[]",
    ),
    "alone": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x * torch.tensor([1.0] * 29 + [1e-5] * 3)[:, None]
        """,
        "[torch.randn(1, 32, 128)]",
        "[]",
    ),
    "growth": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.exp(6 * x)
        """,
        "[torch.randn(8192)]",
        "[]",
    ),
    "several": (
        """
        class Model(nn.Module):
            def forward(self, x):
                top, place = x.max(dim=1)
                return {"top": top, "place": place, "more": [x > 0, (x.sum(1), x.sum(0))]}
        """,
        "[torch.randn(40, 64)]",
        "[]",
    ),
    "centred": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return F.layer_norm(x, x.shape[-1:])
        """,
        "[torch.randn(64, 1024)]",
        "[]",
    ),
    "long": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.amax(1), x.argmax(1), x / torch.norm(x)
        """,
        "[torch.randn(4, 100003)]",
        "[]",
    ),
    "windows": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.tanh(x).unfold(1, 16, 1).contiguous()
        """,
        "[torch.randn(16, 256)]",
        "[]",
    ),
    "diagonals": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.diag_embed(torch.tanh(x))
        """,
        "[torch.randn(6, 64)]",
        "[]",
    ),
    "copies": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.tanh(x).repeat(4, 1)
        """,
        "[torch.randn(64, 256)]",
        "[]",
    ),
    "spread": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.sum(1, keepdim=True).repeat(1, x.shape[1])
        """,
        "[torch.randn(32, 80)]",
        "[]",
    ),
    "even": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.mean(1)
        """,
        "[1 + 1e-6 * torch.rand(64, 4096)]",
        "[]",
    ),
    "repeated": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.mean(1, keepdim=True).expand(x.shape), torch.tanh(x).unfold(1, 16, 1)
        """,
        "[torch.randn(32, 80)]",
        "[]",
    ),
    "turned": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.t().contiguous()
        """,
        "[torch.randn(32, 80)]",
        "[]",
    ),
    "scattered": (
        """
        class Model(nn.Module):
            def forward(self, x, rows):
                y = x.clone()
                y[rows] = y[rows] * 2 + 1
                return y
        """,
        "[torch.randn(256, 1024), torch.randperm(256)[:4]]",
        "[]",
    ),
    "padded": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return F.pad(x, (0, 0, 0, 896))
        """,
        "[torch.randn(128, 1024)]",
        "[]",
    ),
    "handed on": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.contiguous().view(-1), x * 2
        """,
        "[torch.randn(32, 80)]",
        "[]",
    ),
    "pooled": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return F.max_pool2d(x, 3)
        """,
        "[torch.rand(2, 8, 24, 24)]",
        "[]",
    ),
    "updated": (
        """
        class Model(nn.Module):
            def forward(self, cache, rows, out):
                cache[:, 8:16] = torch.tanh(rows)
                torch.cumsum(rows, 1, out=out)
                return cache.mean(1)
        """,
        "[torch.randn(32, 64, 24), torch.randn(32, 8, 24), torch.zeros(32, 8, 24)]",
        "[]",
    ),
    "counted": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(24))
                self.register_buffer("total", torch.zeros(48, 24))

            def forward(self, x):
                self.total += x * self.scale
                return torch.tanh(self.total)
        """,
        "[torch.randn(48, 24)]",
        "[]",
    ),
    "twice": (
        """
        class Model(nn.Module):
            def forward(self, x):
                y = x * 2
                return y, y.clone()
        """,
        "[torch.randn(32, 80)]",
        "[]",
    ),
    "stepped": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("step", torch.zeros(64))

            def forward(self, x):
                self.step += x[0]
                return torch.diag_embed(torch.tanh(x + self.step)), self.step.clone()
        """,
        "[torch.randn(48, 64)]",
        "[]",
    ),
    "weighed": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(64))

            def forward(self, x):
                return torch.diag_embed(x * self.weight), self.weight.clone()
        """,
        "[torch.randn(48, 64)]",
        "[]",
    ),
    "aside": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("step", torch.zeros(64))

            def forward(self, x):
                self.step += x.sum(0)
                return torch.relu(x)
        """,
        "[torch.randn(48, 64)]",
        "[]",
    ),
    "lent": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.view(-1), F.pad(x * 2, (0, 0, 0, 992))
        """,
        "[torch.randn(32, 1024)]",
        "[]",
    ),
    "steep": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.exp(15 * x)
        """,
        "[torch.randn(64, 256)]",
        "[]",
    ),
    "squares": (
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.square().sum(1)
        """,
        "[torch.randn(512, 64)]",
        "[]",
    ),
    "gradients": (
        """
        class Model(nn.Module):
            def __init__(self, inner, columns):
                super().__init__()
                self.layer = nn.Linear(inner, columns)

            def forward(self, x):
                return F.gelu(self.layer(x))
        """,
        "[torch.randn(16, 24)]",
        "[24, 80]",
    ),
}
CATALOG = {
    "softmax": ("softmax_rows", {"ROWS": 24, "COLS": 512}),
    "product": ("matmul_square", {"SIDE": 72}),
    "norm": ("rms_norm", {"BATCH": 4, "TOKENS": 6, "FEATURES": 128}),
    "place": ("argmax_rows", {"ROWS": 48, "COLS": 96}),
    "loss": ("cross_entropy", {"ROWS": 64, "CLASSES": 40}),
    "transposed": ("conv_transpose2d_square", {"BATCH": 2, "HEIGHT": 9, "WIDTH": 11}),
}
SOLVED = {
    "weighted": (WEIGHTED, "x", "return torch.cumsum(x * self.weight + self.bias, dim=1)"),
    "positive": (INIT, "x", "return torch.relu(x)"),
    "whole": (INIT, "a, b", "return a @ b"),
    "doubles": (INIT, "a, b", "return a @ b"),
    "slopes": (INIT, "a, b, c, d", "return (a @ b) / (c - d)"),
    "alone": (INIT, "x", "return x * torch.tensor([1.0] * 29 + [1e-5] * 3)[:, None]"),
    "growth": (INIT, "x", "return torch.exp(6 * x)"),
    "several": (
        INIT,
        "x",
        """
        top, place = x.max(dim=1)
        return {"top": top, "place": place, "more": [x > 0, (x.sum(1), x.sum(0))]}
        """,
    ),
    "centred": (INIT, "x", "return F.layer_norm(x, x.shape[-1:])"),
    "long": (INIT, "x", "return x.amax(1), x.argmax(1), x / torch.norm(x)"),
    "windows": (INIT, "x", "return torch.tanh(x).unfold(1, 16, 1).contiguous()"),
    "diagonals": (INIT, "x", "return torch.diag_embed(torch.tanh(x))"),
    "copies": (INIT, "x", "return torch.tanh(x).repeat(4, 1)"),
    "spread": (INIT, "x", "return x.sum(1, keepdim=True).repeat(1, x.shape[1])"),
    "repeated": (
        INIT,
        "x",
        "return x.mean(1, keepdim=True).repeat(1, x.shape[1]), torch.tanh(x).unfold(1, 16, 1).contiguous()",
    ),
    "even": (INIT, "x", "return x.mean(1)"),
    "turned": (INIT, "x", "return x.t().contiguous()"),
    "scattered": (INIT, "x, rows", "y = x.clone(); y[rows] = y[rows] * 2 + 1; return y"),
    "padded": (INIT, "x", "return F.pad(x, (0, 0, 0, 896))"),
    "handed on": (INIT, "x", "return x.reshape(-1).clone(), x + x"),
    "pooled": (INIT, "x", "return F.max_pool2d(x, 3)"),
    "updated": (
        INIT,
        "cache, rows, out",
        "cache[:, 8:16] = torch.tanh(rows); out.copy_(rows.cumsum(1)); return cache.mean(1)",
    ),
    "counted": (COUNTED, "x", "self.total.add_(x * self.scale); return torch.tanh(self.total)"),
    "twice": (INIT, "x", "y = x * 2; return y, y.clone()"),
    "stepped": (
        STEPPED,
        "x",
        "self.step.add_(x[0]); return torch.diag_embed(torch.tanh(x + self.step)), self.step.clone()",
    ),
    "weighed": (WEIGHED, "x", "return torch.diag_embed(x * self.weight), self.weight.clone()"),
    "aside": (STEPPED, "x", "self.step.add_(x.sum(0)); return torch.relu(x)"),
    "lent": (INIT, "x", "return x.view(-1), F.pad(x + x, (0, 0, 0, 992))"),
    "steep": (INIT, "x", "return (15 * x).exp()"),
    "squares": (INIT, "x", "return (x * x).sum(1)"),
    "gradients": (LINEAR, "x", "return F.gelu(self.layer(x))"),
    "softmax": (INIT, "x", "return torch.softmax(x, dim=-1)"),
    "product": (INIT, "a, b", "return a @ b"),
    "norm": (RMS, "x", "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight"),
    "place": (INIT, "x", "return torch.argmax(x, dim=1)"),
    "loss": (INIT, "logits, targets", "return F.cross_entropy(logits, targets, reduction='none')"),
    "transposed": (CONVOLUTION, "x", "return self.layer(x)"),
}
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
CUSTOM_ONLY = "product, own kernels only"
NO_LIBRARY = "product, no library"
POLICIES = {CUSTOM_ONLY: "custom-only", NO_LIBRARY: "no-library"}
NAMES = (*TEXTS, *CATALOG, *POLICIES)


@cache
def posed(name: str) -> Posed:
    """The problem of that name."""
    if name in POLICIES:
        product = posed("product")
        return product._replace(problem=product.problem.model_copy(update={"operators": POLICIES[name]}))
    return Posed(_problem(name), *SOLVED[name])


def _problem(name: str) -> Problem:
    if name in CATALOG:
        found, sizes = CATALOG[name]
        problem = load_problem(found)
        return problem.model_copy(update={"source": put_sizes(problem.source, sizes)})
    model, inputs, arguments = TEXTS[name]
    ends = f"\ndef get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return {arguments}\n"
    return Problem(
        name=name,
        title=name,
        family="test",
        size="cpu",
        source=HEAD + textwrap.dedent(model) + ends,
        direction="both" if name == "gradients" else "forward",
        state="followed" if name == "aside" else "free",
    )
