import pytest

from kernelwright.agent.normalising import is_copy, normal_digest

KERNEL = '''\
"""What it does."""
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cstdint>

extern "C" void run(const float* __restrict x, float* __restrict out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const float value = x[i];  // twice
        out[i] = value + value;
    }
}
"""
path = load_inline(name="twice", cpp_sources=SOURCE, is_python_module=False)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        result = torch.empty_like(x)
        LIBRARY.run(x.data_ptr(), result.data_ptr(), x.numel())
        return result
'''
REFERENCE = KERNEL.replace("ModelNew", "Model")

UNLIKE = """\
def f(a=None, *b, c: int | None = None):
    return

class C:
    async def g(self):
        yield None

x = lambda: {**{}, "k": [v for v in ()]}
match x:
    case None: pass
    case [1, *_]: print(f"{x!r:>{3}} a")
"""
"""What trees of different Pythons hold unlike each other: empty lists, type parameters, formats in an f-string."""

SAME = {
    "comments": ("// twice", "// the sum of both"),
    "layout": ("    for (int64_t i = 0;", "  for (int64_t i = 0 ;"),
    "a variable in C++": ("value", "v"),
    "a loop variable in C++": ("int64_t i = 0; i < count; ++i", "int64_t i = 0; i < count; ++i"),
    "a parameter in C++": ("count", "n"),
    "a variable in Python": ("result", "out_tensor"),
    "the name of the extension": ('name="twice"', 'name="twice_v2"'),
    "the docstring": ("What it does.", "Doubles."),
}
OTHER = {
    "another number": ("int64_t i = 0", "int64_t i = 1"),
    "another operator": ("value + value", "value * value"),
    "another function": ("LIBRARY.run", "LIBRARY.walk"),
    "another order of arguments": ("x.data_ptr(), result.data_ptr()", "result.data_ptr(), x.data_ptr()"),
    "another class": ("class ModelNew", "class ModelOld"),
    "another name of an argument": ("def forward(self, x):\n        x = x.c", "def forward(self, y):\n        x = y.c"),
    "an omitted statement": ("        x = x.contiguous()\n", ""),
    "another header": ("<cstdint>", "<cmath>"),
}


@pytest.mark.parametrize("change", SAME)
def test_sources_that_differ_only_in_this_are_the_same(change):
    assert normal_digest(KERNEL.replace(*SAME[change])) == normal_digest(KERNEL)
    assert is_copy(KERNEL.replace(*SAME[change]), REFERENCE)


@pytest.mark.parametrize("change", OTHER)
def test_sources_that_differ_in_this_are_not_the_same(change):
    assert KERNEL.replace(*OTHER[change]) != KERNEL
    assert normal_digest(KERNEL.replace(*OTHER[change])) != normal_digest(KERNEL)
    assert not is_copy(KERNEL.replace(*OTHER[change]), REFERENCE)


def in_c(body):
    return f'SOURCE = """\nextern "C" void run(float4 v, float* out) {{\n{body}\n}}\n"""\n'


def test_a_member_is_not_mistaken_for_a_variable():
    assert normal_digest(in_c("float x = v.x; out[0] = x;")) != normal_digest(in_c("float y = v.x; out[0] = v.y;"))


def test_a_name_that_a_macro_uses_is_kept():
    macro = "#define LOAD value\n"
    with_a, with_b = (in_c(f"{macro}float {name} = 1; out[0] = LOAD;") for name in ("value", "other"))
    assert normal_digest(with_a) != normal_digest(with_b)


def test_swapped_functions_are_not_the_same():
    one = in_c("void f() { out[0] = 1; } void g() { out[0] = 2; }")
    other = in_c("void g() { out[0] = 1; } void f() { out[0] = 2; }")
    assert normal_digest(one) != normal_digest(other)


def test_two_variables_that_change_places_are_not_the_same():
    assert normal_digest(in_c("float a = 1; float b = 2; out[0] = a;")) != normal_digest(
        in_c("float a = 1; float b = 2; out[0] = b;")
    )


def test_a_name_of_an_inner_function_does_not_meet_one_of_the_outer():
    one = "def f(x):\n    a = 1\n    def g():\n        b = 2\n        return a\n    return g\n"
    other = "def f(x):\n    a = 1\n    def g():\n        b = 2\n        return b\n    return g\n"
    assert normal_digest(one) != normal_digest(other)


def test_what_is_no_python_counts_as_it_stands():
    assert normal_digest("class (") != normal_digest("class  (")


def test_the_digest_is_the_same_under_every_python():
    assert normal_digest(KERNEL) == "c26f1fc784019a0e72dbeb31f56646c1cf0baf02a342490a8cdac46a270524fe"
    assert normal_digest(UNLIKE) == "9e7c48976cd008fe6897a793c9bd0467b492eded2678dfd3561cec6427411fcd"


@pytest.mark.parametrize("derived", ["class ModelNew(Model):\n    pass\n", "ModelNew = Model\n"])
def test_what_only_derives_from_the_reference_is_a_copy(derived):
    assert is_copy(f"{REFERENCE}\n{derived}", REFERENCE)
