"""Faults put into a correct kernel, and the prompt that asks for the repair of each."""

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.log.records import Ask, Attempt, FoundCandidate, PromptOutline
from kernelwright.agent.log.view import View
from kernelwright.prompts import TargetVersions, render
from tests.support.problems import tiny_problem
from tests.support.search import CPU

PROBLEM = tiny_problem(
    """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) ** 2 * self.scale


def get_inputs():
    return [torch.rand(64, 1001) + 0.5]


def get_init_inputs():
    return [0.5]
""",
    name="scaled_square",
    title="The square of a ReLU, scaled",
)
RIGHT = '''\
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cstdint>
#include <algorithm>

extern "C" void run(const float* __restrict x, float* __restrict out, int64_t count, float scale) {
    for (int64_t i = 0; i < count; ++i) {
        const float positive = x[i] > 0.0f ? x[i] : (x[i] != x[i] ? x[i] : 0.0f);
        out[i] = positive * positive * scale;
    }
}
"""
PATH = load_inline(
    name="scaled_square", cpp_sources=SOURCE, extra_cflags=["-O2"], is_python_module=False, no_implicit_headers=True
)
LIBRARY = ctypes.CDLL(PATH)
LIBRARY.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float]
LIBRARY.run.restype = None


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        LIBRARY.run(x.data_ptr(), out.data_ptr(), x.numel(), self.scale)
        return out
'''
FAULTS = {
    "a missing semicolon": ("positive * scale;", "positive * scale", ["expected ';'", "positive * scale"]),
    "an undeclared name": ("out[i] = positive * p", "out[i] = positve * p", ["'positve' was not declared"]),
    "a missing header": (
        "    for (int64_t",
        "    std::vector<float> kept;\n    for (int64_t",
        ["'vector' is not a member"],
    ),
    "a call with too few arguments": ("x[i] > 0.0f ?", "std::max(x[i]) > 0.0f ?", ["no matching function", "max"]),
    "a symbol that is not there": ("LIBRARY.run.argtypes", "LIBRARY.rum.argtypes", ["undefined symbol: rum"]),
    "another constructor": ("__init__(self, scale)", "__init__(self, scale, n)", ["missing 1 required", "'n'"]),
    "a method that is not there": ("x.contiguous()", "x.contigous()", ["no attribute 'contigous'"]),
    "pointers cut to 32 bits": (
        "ctypes.c_void_p, ctypes.c_void_p",
        "ctypes.c_int, ctypes.c_int",
        ["SIGSEGV", "argtypes"],
    ),
    "arguments of no type": ("LIBRARY.run.argtypes = [", "LIBRARY.run.kinds = [", ["ArgumentError", "argtypes"]),
    "the last element left out": ("i < count;", "i < count - 1;", ["[63, 1000]"]),
    "another factor": ("positive * scale;", "positive * scale * 1.01f;", ["all elements are 1.01 times"]),
    "another shape": ("return out\n", "return out[:, :1000]\n", ["1000", "1001"]),
    "another dtype": ("return out\n", "return out.double()\n", ["float64", "float32"]),
    "a loop without an end": ("++i)", "i += 0)", ["no answer within"]),
}


def with_fault(fault):
    old, new, _ = FAULTS[fault]
    return RIGHT.replace(old, new)


class OneSource:
    """The texts of a run with one candidate."""

    def __init__(self, source):
        self.source = source

    def text(self, digest):
        return self.source

    def reply(self, digest):
        raise AssertionError("the reply held a candidate")


def repair_prompt(source, verdict):
    """What the next step is told of a candidate with that verdict."""
    outline = PromptOutline(role="propose", target="cpp", digest="", stable_digest="", sections=())
    asked = {"problem": PROBLEM.name, "target": "cpp", "idea": "", "directive": "", "model": "m"}
    first, second = (
        Ask(attempt=1, role="propose", parent=None, **asked),
        Ask(attempt=2, role="repair", parent=1, **asked),
    )
    request = {"prompt": outline, "request_digest": "", "temperature": None, "max_tokens": None, "sample": 0}
    found = FoundCandidate(digest="d", language="cpp", how="")
    attempt = Attempt(ask=first, extraction=found, verdict=verdict, **request)
    maker = BriefMaker(CPU, TargetVersions(), OneSource(source))
    prompt = render(maker(PROBLEM, View(problem=PROBLEM.name, attempts=(attempt,)), second))
    evidence = next(section.text for section in prompt.sections if section.name == "evidence")
    return evidence.replace("\u2018", "'").replace("\u2019", "'")


def missing_words(fault, verdict):
    """What decides and is not in the repair prompt."""
    evidence = repair_prompt(with_fault(fault), verdict)
    return [words for words in FAULTS[fault][2] if words not in evidence]
