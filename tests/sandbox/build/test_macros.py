"""Which macros the light header does not bring, by the real compiler: sources that name one get the stock header."""

import pytest

from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.toolchain import MakingHeaders, toolchain

pytestmark = pytest.mark.slow


def test_what_a_light_torch_header_hides_is_noted_and_what_it_brings_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    toolchain.cache_clear()
    try:
        tools = toolchain()
        if tools is None or not tools.is_gcc:
            pytest.skip("the light header is made for g++, and the C++ compiler here is another")
        with MakingHeaders(tools, ["macros"]):
            pass
        lacking = set((tools.light / "macros").read_text().split())
    finally:
        toolchain.cache_clear()
    assert {"TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT"} <= lacking
    assert not lacking & {"TORCH_CHECK", "AT_DISPATCH_FLOATING_TYPES", "PYBIND11_MODULE", "TORCH_EXTENSION_NAME"}
