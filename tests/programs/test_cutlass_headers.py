"""A kernel with headers of CUTLASS builds outside the judge as it did in it."""

import os

import pytest

from kernelwright.programs.placing import INCLUDED, module_of, started
from kernelwright.sandbox.machine import package_headers

SOURCE = """
import ctypes
from torch.utils import cpp_extension

TEXT = '''
#if __has_include(<cute/tensor.hpp>)
extern "C" int found() { return 1; }
#else
extern "C" int found() { return 0; }
#endif
'''
path = cpp_extension.load_inline(
    name="found", cpp_sources=[TEXT], no_implicit_headers=True, is_python_module=False
)
FOUND = ctypes.CDLL(path).found()
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, "/usr/include"])
def test_the_headers_are_found_where_the_package_is_and_the_environment_stays(tmp_path, monkeypatch, before):
    monkeypatch.delenv(INCLUDED, raising=False)
    if before:
        monkeypatch.setenv(INCLUDED, before)
    (tmp_path / "candidate.py").write_text(SOURCE)
    module = module_of(tmp_path / "candidate.py", started(tmp_path / "builds"))
    assert bool(module.FOUND) is (package_headers("cutlass") is not None)
    assert os.environ.get(INCLUDED) == before
