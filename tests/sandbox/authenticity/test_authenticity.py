import importlib.util

import pytest
import torch

from kernelwright.problems import Problem
from kernelwright.sandbox.authenticity import library_calls
from kernelwright.sandbox.authenticity.evidence import (
    SMALL_SHARE,
    Observed,
    judge_authenticity,
    read_authenticity,
    refusal,
)
from kernelwright.sandbox.authenticity.library_calls import MOST_NODES, Unreadable, reach
from kernelwright.sandbox.authenticity.scan import refuse
from kernelwright_child.observe import MOST_LINES, MOST_NAMES, observe

LAYER = "class ModelNew:\n  def __init__(self): self.conv = nn.Conv2d(1, 1, 1)\n"
KERNEL = "library = ctypes.CDLL(load_inline(name='x', cpp_sources=['']))\n"
HELION = """import helion, torch
import helion.language as hl
@helion.kernel(config=helion.Config(block_sizes=[1]))
def own(x):
    out = {beside}
    for row in hl.tile(x.size(0)):
        out[row, :] = {inside}
    return out
class ModelNew:
    def forward(self, x): return own(x)
"""
FORWARD = "class ModelNew:\n  def forward(s, x): "
CASES = {
    "PyTorch's operators in a loop that Helion compiles": (
        HELION.format(beside="torch.empty_like(x)", inside="torch.softmax(x[row, :], 1)"),
        "custom",
    ),
    "PyTorch's operators beside a loop that Helion compiles": (
        HELION.format(beside="torch.softmax(x, 1)", inside="out[row, :] + 0"),
        "mixed",
    ),
    "PyTorch's operators in a loop of one's own that is called like Helion's": (
        HELION.replace("@helion.kernel(config=helion.Config(block_sizes=[1]))", "").format(
            beside="torch.empty_like(x)", inside="torch.softmax(x[row, :], 1)"
        ),
        "library_only",
    ),
    "an own kernel": (KERNEL + FORWARD + "return library.run(x)", "custom"),
    "an own kernel under another name": (KERNEL + "RUN = library.run\n" + FORWARD + "return RUN(x)", "custom"),
    "an own kernel in a function of its own": (
        KERNEL + "def f(x): return library.run(x)\n" + FORWARD + "return f(x)",
        "custom",
    ),
    "an own kernel as an attribute": (
        "class ModelNew:\n  def __init__(s): s.own = load_inline('')\n  def forward(s, x): return s.own.softmax(x)",
        "custom",
    ),
    "a registered operator": ("load_inline('')\n" + FORWARD + "return torch.ops.mine.run(x)", "custom"),
    "a kernel that forward does not lead to": (
        KERNEL + "def f(x): return library.run(x)\n" + FORWARD + "return torch.relu(x)",
        "library_only",
    ),
    "an own function named like an operator": (KERNEL + FORWARD + "return library.softmax(x)", "custom"),
    "a layer that only holds weights": (
        KERNEL + LAYER + "  def forward(self, x): return library.run(x, self.conv.weight)",
        "custom",
    ),
    "a layer that is called": (KERNEL + LAYER + "  def forward(self, x): return self.conv(library.run(x))", "mixed"),
    "a kernel beside the operator": (KERNEL + FORWARD + "return torch.cumsum(library.run(x), 1)", "mixed"),
    "a product by the operator @": (FORWARD + "return x @ x", "library_only"),
    "a library call in C++": ("S = 'at::matmul(a, b)'\nM = load_inline(S)\n" + FORWARD + "return M.run(x)", "mixed"),
    "a triton kernel": ("@triton.jit\ndef k(): pass\n" + FORWARD + "k[1](x)", "custom"),
    "plain arithmetic": (FORWARD + "return x * 2", "unknown"),
    "text that is no Python": ("class ModelNew(:", "unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_label_follows_the_source(name):
    source, label = CASES[name]
    assert read_authenticity(source).label == label


def asked(operators):
    return Problem(name="p", title="", family="", size="cpu", source="", operators=operators)


def seen(*operators, lines=(), **more):
    """The last line that ran took all of the time."""
    line_us = [0.0] * (len(lines) - 1) + [100.0] * bool(lines)
    return Observed(**{"operators": operators, "wall_us": 100.0, "lines": lines, "line_us": line_us} | more)


ZEROS = (
    KERNEL
    + """
class ModelNew:
    def forward(s, x):
        try:
            return library.run(x)
        except Exception:
            return torch.relu(x)
"""
)
CALL, CLAUSE, FALLBACK = 6, 7, 8
"""Lines of the source above."""
RELU = ("aten::relu", 1, 80.0)


def test_a_fallback_that_ran_is_told_with_its_line():
    found = judge_authenticity(ZEROS, seen(RELU, lines=(CALL, CLAUSE, FALLBACK)))
    assert [one for one in found.evidence if "except clause" in one and f"line {CLAUSE}" in one]
    assert found.label == "library_only"


MATMUL = ("aten::mm", 1, 93.0)
DECOY = KERNEL + "class ModelNew:\n  def forward(s, x):\n    library.run(x)\n    return x @ x\n"
CUBLAS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(cutlass_80_simt_sgemm::Params)"


@pytest.mark.parametrize(
    ("label", "observed"),
    [
        ("library_only", seen(MATMUL, lines=(4, 5), line_us=(20.0, 980.0))),
        ("mixed", seen(("aten::mm", 1, 40.0), lines=(4, 5), line_us=(550.0, 450.0))),
        ("custom", seen(("aten::empty", 1, 4.0), lines=(4, 5), line_us=(60.0, 40.0))),
        ("unknown", seen(("aten::mm", 1, 20.0), lines=(4, 5), line_us=(400.0, 600.0))),
        # On a device operators take little of the host's time.
        (
            "library_only",
            seen(("aten::mm", 1, 2.0), lines=(4, 5), kernels=((CUBLAS, 1, 990.0), ("decoy(int)", 1, 9.0))),
        ),
        ("mixed", seen(lines=(4,), kernels=(("own<at::Half>(x)", 1, 50.0), ("void at::native::reduce<1>", 1, 50.0)))),
        ("custom", seen(lines=(4,), kernels=(("own<at::Half>(x)", 1, 50.0), ("Memset (Device)", 1, 2.0)))),
        ("unknown", seen(lines=(4,), kernels=(("Memcpy DtoD (Device -> Device)", 1, 50.0),))),
    ],
)
def test_who_did_the_work_is_told_by_the_share_of_the_time(label, observed):
    assert judge_authenticity(DECOY, observed).label == label


@pytest.mark.parametrize("product", ["np.inner(x, x)", "operator.matmul(x, x)", "torch.inner(x, x)"])
def test_a_line_with_a_kernel_and_a_library_call_that_no_profiler_shows_is_mixed(product):
    text = KERNEL + "import operator\nimport numpy as np\n" + FORWARD + f"library.run({product})"
    assert judge_authenticity(text, seen(lines=(5,))).label == "mixed"


def test_a_kernel_counts_where_its_line_ran_and_the_evidence_says_that_the_process_could_lie():
    assert judge_authenticity(ZEROS, seen(("aten::empty", 1, 2.0), lines=(CALL,))).label == "custom"
    found = judge_authenticity(ZEROS, seen(RELU, lines=(FALLBACK,)))
    assert found.label == "library_only"
    assert [one for one in found.evidence if "80 %" in one and "aten::relu" in one]
    assert "could lie" in judge_authenticity(ZEROS, seen(lines=(CALL,))).evidence[-1]


@pytest.mark.parametrize(
    ("operators", "observed", "words"),
    [
        ("any", seen(RELU), ""),
        ("custom-only", seen(RELU, lines=(FALLBACK,)), "none was reached"),
        ("custom-only", seen(RELU, lines=(CALL,)), "80 % of the call"),
        ("custom-only", seen(("aten::copy_", 1, 80.0), ("aten::relu", 1, 1.0), lines=(CALL,)), ""),
        ("custom-only", seen(("aten::copy_", 1, 80.0), lines=(CALL,)), "line 8 that did not run"),
        ("custom-only", seen(error="no profiler"), ": no profiler"),
        ("no-library", seen(RELU), ""),
        ("no-library", seen(("aten::addmm", 1, 1.0), lines=(CALL,)), "these ran: aten::addmm"),
        ("no-library", seen(("Torch-Compiled Region: 0/0", 1, 1.0)), "torch.compile computed"),
    ],
)
def test_a_policy_refuses_what_it_names(operators, observed, words):
    reason = refusal(asked(operators), ZEROS, observed)
    assert words in reason
    assert bool(reason) == bool(words)


def test_an_account_that_can_not_be_read_is_an_error_and_no_crash():
    assert Observed.read({"operators": [["a", "many", {}]], "lines": "all"}).error
    assert Observed.read({"lines": [0] * 10_000}).error


@pytest.fixture
def own_module(tmp_path):
    """Runs a source as the candidate's file; gives its names."""

    def run(source):
        (tmp_path / "candidate.py").write_text(source)
        spec = importlib.util.spec_from_file_location("candidate", tmp_path / "candidate.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return run


def test_operators_lines_and_natives_of_a_call_are_observed(own_module):
    source = "import torch\ndef f(x):\n    if x.dim() == 9:\n        return None\n    y = torch.relu(x)\n    return y\n"
    module = own_module(source)
    found = Observed.read(observe(lambda: module.f(torch.ones(3000, 3000))))
    assert not found.error
    assert {3, 5, 6} == set(found.lines) and max(zip(found.line_us, found.lines, strict=True))[1] == 5
    assert "aten::relu" in {name for name, _, _ in found.operators}
    assert any(name.endswith(".relu") for name in found.natives)


@pytest.mark.parametrize("late", [2, 3])
def test_one_late_call_takes_no_time_of_a_short_one_and_hides_nothing(own_module, late):
    waits = f"    if len(calls) == {late}: torch.relu(x); time.sleep(0.03)\n"
    module = own_module(f"import time, torch\ncalls = []\ndef f(x):\n    calls.append(1)\n{waits}    return x + 1\n")
    found = Observed.read(observe(lambda: module.f(torch.ones(9))))
    assert max(found.line_us) < 10_000 and found.wall_us < 10_000
    assert any(name.endswith(".relu") for name in found.natives) == (late == 2)
    assert ("aten::relu" in {name for name, _, _ in found.operators}) == (late == 3)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_one_call_of_three_without_a_library_does_not_speak_for_all(own_module, phase):
    body = "    calls.append(1)\n    return torch.softmax(x if len(calls) % 3 else x[:1, :1], 1)\n"
    module = own_module(f"import torch\ncalls = [1] * {phase}\ndef f(x):\n{body}")
    found = Observed.read(observe(lambda: module.f(torch.ones(1000, 1000))))
    assert found.share()[0] > SMALL_SHARE and max(found.line_us) > 100


POOL = "from concurrent.futures import ThreadPoolExecutor\nimport torch\nPOOL = ThreadPoolExecutor(1)\n"
"""Its thread runs since the first call, which is not observed."""


def test_an_operator_in_a_thread_that_runs_already_is_observed(own_module):
    module = own_module(POOL + "def f(x): return POOL.submit(torch.inner, x, x).result()\n")
    found = Observed.read(observe(lambda: module.f(torch.ones(300, 300))))
    assert "aten::inner" in {name for name, _, _ in found.operators}


def test_a_line_in_a_thread_that_runs_already_is_observed(own_module):
    module = own_module(POOL + "def g(x):\n    return x + 1\ndef f(x): return POOL.submit(g, x).result()\n")
    assert 5 in observe(lambda: module.f(torch.ones(3)))["lines"]


def test_code_from_a_text_is_observed(own_module):
    assert observe(lambda: own_module("def f(): exec('x = 1')\n").f())["dynamic"]


def test_an_account_is_bounded_whatever_runs(own_module):
    lines = "\n".join(f"    x = {number}" for number in range(MOST_LINES + 500))
    found = observe(lambda: own_module(f"def f():\n{lines}\n").f())
    assert len(found["lines"]) == MOST_LINES
    assert len(found["operators"]) <= MOST_NAMES


HEAD = "import ctypes, os, subprocess, torch\nfrom torch.utils.cpp_extension import load_inline\n"


def test_a_long_chain_of_attributes_is_read():
    chain = "class ModelNew:\n  def forward(s, x):\n    z = x" + ".T" * 1500 + "\n    return torch.cumsum(x, 1)"
    assert read_authenticity(chain).label == "library_only"


def test_a_native_name_is_followed_through_thousands_of_assignments_once_each():
    links = 4000
    text = "".join(f"v{i} = v{i + 1}\n" for i in range(links)) + f"v{links} = load_inline('')\n"
    lookups = []

    class Counted(dict):
        def pop(self, key, default=()):
            lookups.append(key)
            return super().pop(key, default)

    assert len(reach(text).own) == links + 1
    leads = Counted({f"v{i + 1}": [[f"v{i}"]] for i in range(links)})
    assert len(library_calls._spread([f"v{links}"], leads)) == links + 1
    assert len(lookups) == links + 1


@pytest.mark.slow
def test_many_functions_of_one_name_are_each_read_once():
    text = "class ModelNew:\n  def forward(s, x): return a\n" + "def a(): return a\n" * 3000
    nodes = reach(text).nodes
    assert len(nodes) == len({id(node) for node in nodes})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["x = " + "-" * 5000 + "1", "x = " + "(" * 150 + "1", pytest.param("x = 1\n" * MOST_NODES, marks=pytest.mark.long)],
)
def test_a_source_that_can_not_be_read_is_unknown_and_refused_where_only_own_kernels_count(text):
    with pytest.raises(Unreadable):
        reach(text)
    assert read_authenticity(text).label == "unknown"
    assert judge_authenticity(text, Observed()).label == "unknown"
    assert "read" in refusal(asked("custom-only"), text, Observed())


OWN = {
    "one that load_inline has built": "RUN = ctypes.CDLL(load_inline('')).run\n",
    "one whose path goes by another name": "P = load_inline('')\nQ = str(P)\nRUN = ctypes.CDLL(Q)['run']\n",
    "one that a compiler has built": "subprocess.run(['cc', '-olibmine.so'])\nRUN = ctypes.CDLL('libmine.so').run\n",
    "one beside what is built": "load_inline('')\nRUN = ctypes.CDLL(os.path.join('build', 'x.so')).run\n",
}
FOREIGN = {
    "torch's, by its folder": "RUN = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), 'x.so')).run\n",
    "torch's, beside a kernel": "load_inline('')\nD = torch.__path__[0]\nRUN = ctypes.CDLL(D + '/lib/x').run\n",
    "torch's, by its name": "load_inline('')\nRUN = ctypes.CDLL('libtorch_cpu.so').run\n",
    "the process itself": "load_inline('')\nRUN = ctypes.CDLL(None).run\n",
    "any where nothing is built": "RUN = ctypes.CDLL('/tmp/x.so').run\n",
}


@pytest.mark.parametrize("name", [*OWN, *FOREIGN])
def test_a_library_that_the_candidate_has_built_is_its_own_and_one_from_before_is_not(name):
    assert bool(reach(HEAD + (OWN | FOREIGN)[name] + FORWARD + "return RUN(x)").own_calls) == (name in OWN)


REFUSED = {
    "a null byte": ("x = 1\ny = '\0'\n", r"line 2: Python text cannot hold null bytes: y = '\x00'"),
    "a null byte at the end of a candidate": (
        "class ModelNew: pass\n\0",
        r"line 2: Python text cannot hold null bytes: \x00",
    ),
    "a syntax error": ("x = 1\nclass ModelNew(:\n", "line 2: invalid syntax: class ModelNew(:"),
    "a lone surrogate": ("x = '\ud800'", "the source cannot be parsed: 'utf-8' codec can't encode"),
    "nothing": ("", "no class ModelNew is defined; the file defines nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_run_is_refused_in_a_sentence(name):
    source, said = REFUSED[name]
    assert refuse(source).startswith(said)
    assert "None" not in refuse(source)
