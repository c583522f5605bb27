import os
import re
import struct
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from kernelwright.agent.replies import Extraction, extract
from kernelwright.problems import loading
from kernelwright.sandbox.authenticity.evidence import (
    Observed,
    judge_authenticity,
    needed_symbols,
    read_authenticity,
    refusal,
    undefined,
)
from kernelwright.sandbox.authenticity.library_calls import (
    cpp_operators,
    dispatched,
    library_calls,
    reach,
    vendor_symbols,
    vendor_words,
)
from kernelwright.sandbox.authenticity.operator_names import OPERATORS
from tests.sandbox.authenticity.test_authenticity import asked

RECORDED = sorted(loading.CATALOG.glob("*/recorded/*/*.md"))
MODEL = """
import functools, math, re
import torch, triton
import torch.nn.functional as F
import triton.language as tl
from torch import bmm as product
from torch.utils.cpp_extension import load_inline
OWN = load_inline(name="own", cpp_sources=[''])
{top}
class ModelNew(torch.nn.Module):
    def __init__(self):
        self.layer = torch.nn.Linear(3, 3)
        {init}
    def forward(self, x):
        y = OWN.run(x)
        {forward}
        return y
"""
RAN = Observed(operators=(("aten::empty", 1, 1.0),), wall_us=100.0, natives=("own.run",))
"""A call in which nothing of a library was seen."""


def source(forward="pass", init="pass", top=""):
    return MODEL.format(forward=forward, init=init, top=textwrap.dedent(top))


def unseen(text):
    return refusal(asked("custom-only"), text, RAN)


WAYS = {
    "a call": ({"forward": "y = torch.matmul(x, x)"}, "matmul"),
    "a method": ({"forward": "y = x.softmax(1)"}, "softmax"),
    "an operator sign": ({"forward": "y = x @ x"}, "@"),
    "an operator sign that assigns": ({"forward": "y @= x"}, "@"),
    "a layer": ({"forward": "y = self.layer(x)"}, "layer"),
    "an imported name": ({"forward": "y = product(x, x)"}, "product"),
    "another name": ({"top": "theirs = torch.matmul", "forward": "y = theirs(x, x)"}, "matmul"),
    "an attribute": ({"init": "self.theirs = F.softmax", "forward": "y = self.theirs(x)"}, "softmax"),
    "a part of a function": (
        {"init": "self.theirs = functools.partial(torch.mm, x)", "forward": "y = self.theirs(x)"},
        "mm",
    ),
    "a lambda": ({"init": "self.f = lambda x: torch.mm(x, x)", "forward": "y = self.f(x)"}, "mm"),
    "a name in words": ({"forward": "y = getattr(torch, 'bmm')(x, x)"}, "bmm"),
    "the namespace of operators": ({"forward": "y = torch.ops.aten.mm.default(x, x)"}, "mm"),
    "C++": ({"top": "S = 'y = at::matmul(a, b);'"}, "matmul in C++"),
    "a method in C++": ({"top": "S = 'y = a.mm(b);'"}, "mm in C++"),
    "C++ past the dispatcher": ({"top": "S = 'y = at::cpu::addmm_out(y, a, b);'"}, "addmm in C++"),
    "C++ by the name in words": ({"top": "S = 'find(\"aten::inner\")'"}, "inner in C++"),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_way_to_a_library_that_did_not_run_is_refused_by_name(name):
    parts, shown = WAYS[name]
    assert f"a way to {shown}" in unseen(source(**parts))


HONEST = {
    "nothing but an own kernel": {},
    "a weight of a layer": {"forward": "y = OWN.run(self.layer.weight)"},
    "work in the constructor": {"init": "self.scale = torch.sigmoid(x)", "forward": "y = OWN.run(self.scale)"},
    "an own function of an operator's name": {"forward": "y = OWN.softmax(x)"},
    "an own registered operator": {"forward": "y = torch.ops.mine.softmax(x)"},
    "mathematics of numbers": {"forward": "y = math.tanh(0.5)"},
    "a pattern": {"forward": "re.compile('x')"},
    "a dot in a kernel of Triton": {"top": "@triton.jit\ndef k(x): return tl.dot(x, x)", "forward": "k[1](x)"},
    "a comment in C++": {"top": "S = 'int x; // as at::matmul(a, b), or sgemm_(n), does\\n/* cblas_sgemm(n) */'"},
    "an own product that is called so": {"top": "S = 'void sgemm(float* a) { } void sgemm_kernel(float* a);'"},
    "a setting of torch": {"top": "torch.backends.cudnn.benchmark = True"},
    "a setting in the environment": {"top": "os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'"},
    "words about a library": {"forward": '"""Faster than cublasSgemm and torch::matmul(a, b)."""'},
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_not_refused(name):
    assert unseen(source(**HONEST[name])) == ""


def test_a_way_that_was_seen_to_run_is_judged_by_its_share():
    operators = (*RAN.operators, ("aten::relu", 1, 2.0))
    small = RAN.model_copy(update={"operators": operators})
    assert refusal(asked("custom-only"), source("y = torch.relu(x)"), small) == ""


VENDORS = [
    *("sgemm_", "dgemm_64_", "cblas_sgemm", "LAPACKE_sgesv", "spotrf_", "dnnl_sgemm", "mkl_blas_avx2_sgemm_kernel"),
    *("cublasSgemm", "cublasLtMatmul", "cudnnConvolutionForward", "cusolverDnSpotrf", "gemm_bf16bf16f32"),
]


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("word", VENDORS)
def test_a_product_of_a_vendors_library_is_refused_wherever_it_is_named(policy, word):
    for top in (f"S = 'extern \"C\" void {word}();'", f"f = library.{word}", f"f = getattr(library, '{word}')"):
        assert word in refusal(asked(policy), source(top=top), RAN)


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("symbol", ["sgemm_", "sgemm", "SGEMM", "_ZN2at6native7cpublas4gemmE", "_ZN4dnnl6matmulE"])
def test_a_product_that_a_library_needs_is_refused(policy, symbol):
    assert symbol in refusal(asked(policy), source(), RAN, frozenset({"memcpy", symbol}))


def test_an_operator_of_torch_that_a_library_needs_and_no_run_showed_is_refused():
    symbols = frozenset({"_ZN2at4_ops6matmul4callERKNS_6TensorES4_"})
    assert "a way to matmul in C++" in refusal(asked("custom-only"), source(), RAN, symbols)


def test_operators_of_libraries_that_come_with_torch_are_no_kernel_of_ones_own():
    text = "import torch\nload_inline('')\nclass ModelNew:\n  def forward(s, x): return other(x)\n"
    for namespace, own in (("mkldnn", False), ("quantized", False), ("mine", True)):
        seen = Observed(operators=((f"{namespace}::_linear_pointwise", 1, 99.0),), wall_us=100.0)
        assert ("none was reached" in refusal(asked("custom-only"), text, seen)) is not own


MKLDNN = "y = torch.ops.mkldnn._linear_pointwise(x, x, None, 'none', [], '')"


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("name", ["mkldnn::_linear_pointwise", "mkl::_mkl_linear", "onednn::qlinear_pointwise"])
def test_an_operator_that_a_vendor_computes_is_refused_in_any_of_torchs_namespaces(policy, name):
    seen = RAN.model_copy(update={"operators": ((name, 1, 1.0),)})
    assert name in refusal(asked(policy), source(), seen)


def test_an_operator_of_any_of_torchs_namespaces_takes_time_and_a_record_takes_none():
    for name, share in (("prims::exp", 0.99), ("c10d::allreduce_", 0.99), ("profiler::_record", 0), ("mine::run", 0)):
        assert Observed(operators=((name, 1, 99.0),), wall_us=100.0).share()[0] == share


def test_a_call_of_an_operator_in_one_of_torchs_namespaces_is_a_librarys_and_no_own_kernel():
    assert "a way to ops.mkldnn" in unseen(source(MKLDNN))
    for call, own in ((MKLDNN, False), ("y = torch.ops.mine.run(x)", True)):
        text = f"load_inline('')\nclass ModelNew:\n  def forward(s, x):\n    {call}\n    return y\n"
        assert bool(reach(text).own_calls) is own


COMPUTED = {
    "an attribute of the module": ("import numpy as xp", "y = xp.inner(x, x)"),
    "a name from the module": ("from numpy import inner", "y = inner(x, x)"),
    "a name in the function": ("", "import numpy as xp; y = xp.inner(x, x)"),
    "a module in the module": ("import scipy.linalg", "y = scipy.linalg.inv(x)"),
    "another name": ("import numpy as xp\ntheirs = xp.inner", "y = theirs(x, x)"),
    "a name in words": ("import numpy as xp", "y = getattr(xp, 'inner')(x, x)"),
    "a name that is put together": ("import numpy as xp", "y = getattr(xp, 'in' + 'ner')(x, x)"),
    "the module's names": ("import numpy as xp", "y = vars(xp)[x](x, x)"),
    "an import in words": ("", "y = __import__('numpy').inner(x, x)"),
}


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("name", COMPUTED)
def test_what_numpy_and_scipy_compute_is_refused_by_any_name(policy, name):
    top, forward = COMPUTED[name]
    reason = refusal(asked(policy), source(forward, top=top), RAN)
    assert "numpy" in reason or "scipy" in reason


PLUMBED = {
    "memory": "y = xp.empty(tuple(x.shape), xp.float32); OWN.run(y.ctypes.data)",
    "another view": "y = OWN.run(xp.ascontiguousarray(xp.frombuffer(x, dtype=xp.uint8)))",
    "a type": "y = OWN.run(xp.ctypeslib.ndpointer(xp.dtype('f4')), isinstance(x, xp.ndarray))",
    "a size": "y = OWN.run(int(xp.prod(x.shape)))",
}


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("name", PLUMBED)
def test_arrays_of_numpy_that_hold_what_an_own_kernel_computes_are_not_refused(policy, name):
    assert refusal(asked(policy), source(PLUMBED[name], top="import numpy as xp"), RAN) == ""


def test_a_table_that_numpy_computes_in_the_constructor_is_not_refused():
    assert unseen(source("y = OWN.run(self.t)", "self.t = xp.sin(xp.arange(9))", "import numpy as xp")) == ""


@pytest.mark.parametrize("product", ["operator.matmul(x, x)", "x.__matmul__(x)"])
def test_other_spellings_of_a_product_are_refused(product):
    assert "matmul" in unseen(source(f"y = {product}", top="import operator"))


@pytest.mark.parametrize("module", [torch, torch.nn.functional, torch.linalg])
def test_every_product_convolution_softmax_norm_and_pool_of_torch_is_known(module):
    kinds = re.compile(
        r"conv\w*d|\w*mm|\w*(matmul|dot|softmax|softmin|einsum|inner)|\w*_norm|\w*_pool\dd|cum(sum|prod)"
    )
    backends = ("_", "cudnn", "miopen", "mkldnn", "quantized")
    there = {name for name in dir(module) if kinds.fullmatch(name) and not name.startswith(backends)}
    assert there and there <= OPERATORS


@pytest.mark.parametrize(
    "call",
    [
        *("torch.inner(x, x)", "torch.addbmm(x, x, x)", "torch.chain_matmul(x, x)", "torch.linalg.multi_dot([x, x])"),
        *(
            "F.softmin(x)",
            "torch.ops.aten.inner(x, x)",
            "torch.lstm(x)",
            "x.sum(1)",
            "x.amax(1)",
            "torch.special.softmax(x)",
        ),
    ],
)
def test_an_operator_of_each_family_is_refused_where_it_did_not_run(call):
    assert "a way to" in unseen(source(f"y = {call}"))


def test_a_reduction_in_a_kernel_of_triton_is_not_torchs():
    top = "@triton.jit\ndef k(x): return x.sum(0) + x.max(0)"
    assert unseen(source("k[1](x)", top=top)) == ""


@pytest.mark.parametrize(
    ("symbol", "operator"),
    [
        ("_ZN2at4_ops15sum_dim_IntList4callERKNS_6TensorE", "sum"),
        ("_ZN2at3cpu5addmmERKNS_6TensorE", "addmm"),
        ("_ZN2at6native5innerERKNS_6TensorES3_", "inner"),
        ("_ZN2at4_ops16linalg_multi_dot4callE", "multi_dot"),
        ("aoti_torch_cpu_mm_out", "mm"),
        ("_ZN2at4_ops10empty_like4callERKNS_6TensorE", ""),
        ("_ZN2at999", ""),
    ],
)
def test_an_operator_is_known_by_the_symbol_that_a_library_needs(symbol, operator):
    assert dispatched({symbol}) == {operator} - {""}


@pytest.mark.parametrize("policy", ["custom-only", "no-library"])
@pytest.mark.parametrize("word", ["at::RecordFunctionGuard quiet(false);", "at::DisableRecordFunctionGuard quiet;"])
def test_what_turns_off_the_records_of_operators_is_refused(policy, word):
    assert "RecordFunctionGuard" in refusal(asked(policy), source(top=f"S = '{word}'"), RAN)
    assert judge_authenticity(source(top=f"S = '{word}'"), RAN).label == "unknown"
    symbols = frozenset({"_ZN2at20enableRecordFunctionEb"})
    assert "enableRecordFunction" in refusal(asked(policy), source(), RAN, symbols)


@pytest.mark.parametrize(
    ("forward", "top", "symbol"),
    [
        ("if x is None: y = torch.matmul(x, x)", "", ""),
        ("y = self.pool.submit(torch.inner, x, x)", "", ""),
        (MKLDNN, "", ""),
        ("pass", "S = 'at::conv2d(a, b);'", ""),
        ("pass", "", "_ZN2at4_ops6matmul4callERKNS_6TensorES4_"),
    ],
)
def test_a_vendors_operator_that_did_not_run_is_refused_where_no_library_counts(forward, top, symbol):
    assert "it names" in refusal(asked("no-library"), source(forward, top=top), RAN, frozenset({symbol}))


def test_an_operator_of_torchs_own_that_did_not_run_is_allowed_where_no_library_counts():
    assert refusal(asked("no-library"), source("y = torch.relu(x).sum(1)", top="S = 'at::softmax(a, 1)'"), RAN) == ""


HELPER = "class Kernels:\n  def mm(self, a, b): return OWN.run(a, b)\n  def two(self, a): return self.mm(a, a)\n"
NAMED_LIKE_TORCHS = {
    "a method of self": ("y = K.two(x)", HELPER + "K = Kernels()"),
    "a method of an instance": ("y = K.mm(x, x)", HELPER + "K = Kernels()"),
    "a method of an attribute": ("y = self.kept.mm(x, x)", HELPER),
}
TORCHS = {
    "a tensor under the name of an instance": ("K = x; y = K.mm(x, x)", HELPER + "K = Kernels()"),
    "an argument under the name of an instance": ("y = (lambda K: K.mm(x, x))(x)", HELPER + "K = Kernels()"),
    "a tensor as self": ("y = Kernels.two(x, x)", HELPER),
    "a tensor as self of a function in a method": (
        "y = K.two(x)",
        HELPER.replace("return self.mm(a, a)", "return (lambda self: self.mm(a))(a)") + "K = Kernels()",
    ),
    "a method that is replaced": ("y = K.mm(x, x)", HELPER + "K = Kernels()\nK.mm = torch.mm"),
    "a method that is replaced in words": ("y = K.mm(x, x)", HELPER + "K = Kernels()\nsetattr(K, 'm' + 'm', f)"),
    "a method of the class above": (
        "y = K.mm(x)",
        "class T(torch.Tensor):\n  def mm(self, a): return super().mm(a)\nK = T()",
    ),
    "a method of none of its classes": ("y = K.bmm(x, x)", HELPER + "K = Kernels()"),
}


@pytest.mark.parametrize("name", NAMED_LIKE_TORCHS)
def test_an_own_method_that_is_called_like_an_operator_is_not_torchs(name):
    forward, top = NAMED_LIKE_TORCHS[name]
    assert unseen(source(forward, "self.kept = Kernels()" if "kept" in forward else "pass", top)) == ""


@pytest.mark.parametrize("name", TORCHS)
def test_an_operator_is_torchs_where_an_own_method_of_its_name_is_not_what_is_called(name):
    forward, top = TORCHS[name]
    assert "mm in line" in unseen(source(forward, top=top))


def test_there_are_recorded_answers_to_read():
    assert len(RECORDED) > 20


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "/".join(path.parts[-4:]))
def test_a_recorded_answer_is_custom_and_names_no_library(path):
    found = extract(path.read_text())
    assert isinstance(found, Extraction)
    followed = reach(found.source)
    assert read_authenticity(found.source).label == "custom"
    assert not [call for call in library_calls(followed) if not call.constructs]
    assert not cpp_operators(followed) | vendor_words(followed)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder with a library that calls what it does not define, and defines a product of its own."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.c").write_text("void sgemm_(void); void dgemm(void) {} void run(void) { sgemm_(); dgemm(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True)
    return folder


def test_the_undefined_symbols_of_what_was_built_are_read_under_any_name_and_folder(library, tmp_path):
    assert vendor_symbols(needed_symbols(library)) == {"sgemm_"}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "data.txt").write_bytes((library / "a.so").read_bytes())
    assert "sgemm_" in needed_symbols(tmp_path)


def test_links_pipes_and_folders_that_are_not_there_are_passed_over(library, tmp_path):
    (tmp_path / "link.so").symlink_to(library / "a.so")
    os.mkfifo(tmp_path / "pipe.so")
    assert needed_symbols(tmp_path) == needed_symbols(Path("/nowhere")) == set()


def test_a_broken_library_gives_nothing_and_no_error(library):
    whole = (library / "a.so").read_bytes()
    for length in range(0, len(whole), 97):
        assert undefined(whole[:length]) <= undefined(whole)
    sections = struct.unpack_from("<Q", whole, 40)[0]
    for place in range(sections, len(whole)):
        undefined(whole[:place] + b"\xff" + whole[place + 1 :])
    for place in range(64):
        undefined(whole[:place] + b"\xff" + whole[place + 1 :])
