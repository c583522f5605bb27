import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK
from tests.support.problems import tiny_problem

pytestmark = pytest.mark.slow

SOURCE = """
import torch
import torch.nn.functional as F

def in_steps(x, step):
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for start in range(0, x.shape[-1], step):
        total = (total.float() + x[..., start:start + step].float().sum(-1)).to(x.dtype)
    return total

def product(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[None, k]
    return total

class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor}

    def forward(self, x):
        {forward}
"""
REST = """
def get_inputs():
    return [torch.randn({shape})]

def get_init_inputs():
    return []
"""
WEIGHT = "self.weight = torch.nn.Parameter(torch.randn(1024, 64))"
KERNEL = "self.weight = torch.nn.Parameter(torch.randn(16, 128, 3, 3) / 34)"
SCALE = "self.scale = torch.nn.Parameter(torch.rand(1024) + 0.5)"
PROBLEMS = {
    "product": ("64, 1024", WEIGHT, "return x @ self.weight"),
    "softmax": ("64, 4096", "pass", "return torch.softmax(x, -1)"),
    "norm": ("64, 1024", SCALE, "return F.layer_norm(x, (1024,), self.scale)"),
    "convolution": ("2, 128, 10, 10", KERNEL, "return F.conv2d(x, self.weight)"),
    "mean": ("128, 4096", "pass", "return x.mean(-1)"),
}
IN_FLOAT32 = {
    "product": "return (x.float() @ self.weight.float()).to(x.dtype)",
    "softmax": "e = torch.exp(x.float() - x.float().amax(-1, True)); return (e / e.sum(-1, True)).to(x.dtype)",
    "norm": """f = x.float() - x.float().mean(-1, True)
        return (f / torch.sqrt(f.square().mean(-1, True) + 1e-5) * self.scale.float()).to(x.dtype)""",
    "convolution": """patches = F.unfold(x.float(), 3)
        return (self.weight.float().flatten(1) @ patches).view(2, 16, 8, 8).to(x.dtype)""",
    "mean": "return (x.float().sum(-1) / 4096).to(x.dtype)",
}
IN_16_BITS = {
    "product": "return product(x, self.weight)",
    "softmax": "e = torch.exp(x - x.amax(-1, True)); return e / in_steps(e, 1)[..., None]",
    "norm": """f = x - x.mean(-1, True)
        return f / torch.sqrt(in_steps(f * f, 1)[..., None] / 1024 + 1e-5) * self.scale""",
    "convolution": """patches = F.unfold(x.float(), 3).to(x.dtype).transpose(1, 2).reshape(-1, 1152)
        return product(patches, self.weight.flatten(1).t()).view(2, 64, 16).transpose(1, 2).reshape(2, 16, 8, 8)""",
    "mean": "return in_steps(x, 1) / 4096",
}
ROUNDED = {"bfloat16": "torch.float8_e4m3fn", "float16": "torch.bfloat16"}


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module", params=PROBLEMS)
def judged(dtype, request):
    """The problem's name, and verdicts on it at this dtype by what the candidate returns."""
    shape, constructor, forward = PROBLEMS[request.param]
    source = SOURCE.format(name="Model", constructor=constructor, forward=forward) + REST.format(shape=shape)
    problem = tiny_problem(source, name=request.param, dtype=dtype)

    with Judge(problem, QUICK.model_copy(update={"worker_pairs": 2})) as judge:
        assert {raw.dtype for raw in judge.reference.draw().tensors} == {dtype}
        assert {raw.dtype for raw in judge.reference.weights.tensors} <= {dtype}
        yield (
            request.param,
            lambda lines: judge.judge(
                Candidate(source=SOURCE.format(name="ModelNew", constructor=constructor, forward=lines))
            ),
        )


def test_plain_torch_passes(judged):
    name, verdict = judged
    found = verdict(PROBLEMS[name][2])
    assert isinstance(found, Passed), found


def test_sums_in_float32_pass(judged):
    name, verdict = judged
    found = verdict(IN_FLOAT32[name])
    assert isinstance(found, Passed), found


def test_sums_in_16_bits_fail(judged):
    name, verdict = judged
    found = verdict(IN_16_BITS[name])
    assert isinstance(found, Failed) and found.stage == "check", found
    assert "error" in found.reason


def test_a_result_that_was_rounded_lower_fails(judged, dtype):
    name, verdict = judged
    found = verdict(PROBLEMS[name][2].replace("return ", "return (", 1) + f").to({ROUNDED[dtype]}).to(x.dtype)")
    assert isinstance(found, Failed) and found.stage == "check", found


def test_a_result_of_another_dtype_fails(judged):
    name, verdict = judged
    found = verdict(PROBLEMS[name][2].replace("return ", "return (", 1) + ").float()")
    assert isinstance(found, Failed) and "has dtype float32" in found.reason, found
