"""References that work in place: what a call makes of inputs, parameters and buffers is compared like its result."""

from contextlib import closing

import pytest
import torch

from kernelwright.evals.checking import examine_problem
from kernelwright.problems import Problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.correctness.families import vary
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedProblem
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from tests.sandbox.conftest import QUICK

pytestmark = pytest.mark.slow
SETTINGS = QUICK.model_copy(update={"worker_pairs": 2})
SOURCE = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}
"""
REST = """
def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
WIDE, LONG = "torch.randn(768, 1024)", "torch.randn(4096, 1024)"
CACHE = """
        self.register_buffer('cache', torch.zeros(4, 768, 1024))
        self.register_buffer('pos', torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(1024))
"""
POSED = {
    "cache": ("pass", "cache, k", f"{WIDE}, torch.randn(768, 832)", "cache[:, 64:896] = torch.tanh(k); return cache"),
    "step": (
        "pass",
        "weight, gradient, momentum",
        ", ".join([WIDE] * 3),
        "momentum.mul_(0.9).add_(gradient); weight.sub_(momentum * 0.1); return None",
    ),
    "out": ("pass", "a, b, c", f"{LONG}, {LONG}, torch.zeros(4096, 1024)", "torch.add(a, b, out=c); return None"),
    "positive": ("pass", "x", "torch.rand(64, 48)", "x.relu_(); return x[:, 1:]"),
    "buffers": (
        CACHE,
        "x",
        WIDE,
        "self.cache[self.pos] = x * self.scale; self.pos += 1; return self.cache.sum(0)",
    ),
    "parameter": (
        "self.weight = nn.Parameter(torch.randn(64, 48))",
        "x",
        "torch.randn(64, 48)",
        "self.weight.data.add_(x); return self.weight * 2",
    ),
    "last": (
        "self.register_buffer('last', torch.zeros(64, 48))",
        "x",
        "torch.randn(64, 48)",
        "y = x - self.last; self.last = x; return y",
    ),
}  # fmt: skip
OTHER = "which the reference leaves as it is"
NEW = "new = self.cache.clone(); new[self.pos] = x * self.scale; "
CASES = {
    "cache": {
        "cache[:, 64:896].copy_(torch.tanh(k)); return cache[:]": None,
        "new = cache.clone(); new[:, 64:896] = torch.tanh(k); return new": "input 0 after the call",
        "cache[:, 63:895] = torch.tanh(k); return cache": "input 0 after the call",
        "cache[:, 64:896] = k.tanh_(); return cache": "the call changed input 1 in place, " + OTHER,
    },
    "step": {
        "momentum.copy_(momentum * 0.9 + gradient); weight.add_(momentum, alpha=-0.1)": None,
        "momentum.mul_(0.9).add_(gradient)": "input 0 after the call",
        "momentum.mul_(0.9).add_(gradient); weight.sub_(gradient.copy_(momentum * 0.1))": "changed input 1 in place",
    },
    "out": {
        "c.copy_(a).add_(b)": None,
        "return None": "input 2 after the call has NaN",
        "torch.add(a, b, out=c); a.zero_()": "changed input 0 in place, " + OTHER,
        "c.add_(a).add_(b)": "input 2 after the call has NaN",
        "c.copy_(a).add_(b); return c": "memory of an input",
    },
    "positive": {
        "return torch.relu_(x)[:, 1:]": None,
        "return torch.relu(x)[:, 1:]": "input 0 after the call",
    },
    "buffers": {
        "self.cache[self.pos].copy_(x * self.scale); self.pos += 1; return self.cache.sum(0)": None,
        NEW + "self.cache, self.pos = new, self.pos + 1; return new.sum(0)": None,
        NEW + "self.pos += 1; return new.sum(0)": "cache after the call",
        "self.cache[self.pos] = x * self.scale; return self.cache.sum(0)": "pos after the call",
        "self.cache[self.pos] = x * self.scale; self.pos += 1; self.scale.zero_(); return self.cache.sum(0)": "scale",
    },
    "parameter": {
        "self.weight.add_(x); return self.weight * 2": None,
        "return (self.weight + x) * 2": "weight after the call",
    },
    "last": {
        "y = x - self.last; self.last.copy_(x); return y": None,
        "return x - self.last": "last after the call",
    },
}  # fmt: skip


def source(name, problem, forward):
    init, arguments, *_ = POSED[problem]
    return SOURCE.format(name=name, init=init, arguments=arguments, forward=forward)


def posed(name):
    *_, inputs, forward = POSED[name]
    text = source("Model", name, forward) + REST.format(inputs=inputs)
    return Problem(name=name, title="", family="test", size="cpu", source=text)


@pytest.fixture(scope="module")
def judge_of():
    judges = {}
    yield lambda name: judges.setdefault(name, Judge(posed(name), SETTINGS))
    for judge in judges.values():
        judge.close()


@pytest.mark.parametrize(("name", "forward"), [(name, forward) for name in CASES for forward in CASES[name]])
def test_what_a_call_changes_is_part_of_its_result(judge_of, name, forward):
    words, found = CASES[name][forward], judge_of(name).judge(Candidate(source=source("ModelNew", name, forward)))
    if words is None:
        assert isinstance(found, Passed), found
        assert found.evidence.problem_status.status == "ok", found
    else:
        assert isinstance(found, Failed) and words in found.reason, found
        assert found.stage == ("run" if "in place" in words or "memory" in words else "check")


@pytest.mark.parametrize("name", ["cache", "step", "out", "buffers"])
def test_a_problem_that_is_computed_in_place_is_checked_as_ok(name):
    found = examine_problem(posed(name), QUICK)
    assert (found.status, found.why) == ("ok", ())


def test_a_place_that_is_only_written_is_never_shown_as_it_was_drawn():
    with (
        closing(backend_of(QUICK).reference(posed("out"))) as out,
        closing(backend_of(QUICK).reference(posed("cache"))) as cache,
    ):
        assert out.changes == (2,) and torch.isnan(out.draw().tensors[2].tensor()).all()
        assert cache.changes == (0,) and not torch.isnan(cache.draw().tensors[0].tensor()).any()


def test_a_change_that_no_draw_has_shown_is_told():
    forward = "if x.max() > 50: y.zero_()\n        return torch.tanh(x)"
    text = SOURCE.format(name="Model", init="pass", arguments="x, y", forward=forward)
    text += REST.format(inputs="torch.randn(8, 8), torch.randn(8, 8)")
    problem = Problem(name="rarely", title="", family="test", size="cpu", source=text)
    with closing(backend_of(QUICK).reference(problem)) as reference:
        values = vary(reference.draw(), "shifted by 100")
        with pytest.raises(BrokenProblem, match="changed input 1 in place"):
            reference.call(values)


GROWING = (
    "self.register_buffer('cache', torch.zeros(0, 48))",
    "self.cache = torch.cat([self.cache, x]); return self.cache.sum(0)",
)
UNSEEN = ("self.count = 0", "self.count += 1; return x * self.count")


@pytest.mark.parametrize(("init", "forward"), [GROWING, UNSEEN], ids=["a buffer that grows", "what no buffer holds"])
def test_what_can_not_be_put_back_is_refused(init, forward):
    text = SOURCE.format(name="Model", init=init, arguments="x", forward=forward) + REST.format(
        inputs="torch.randn(64, 48)"
    )
    with pytest.raises(UnsupportedProblem, match="cannot be judged"):
        examine_problem(Problem(name="unseen", title="", family="test", size="cpu", source=text), QUICK)
