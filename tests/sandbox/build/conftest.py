import pytest

from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.toolchain import prepare_headers, toolchain


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A fresh cache with the light header; other tests of this session share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        toolchain.cache_clear()
        found = toolchain()
        if found is None or not found.is_gcc:
            pytest.skip("the light header is made for g++, and the C++ compiler here is another")
        assert prepare_headers(found)
        yield found
    toolchain.cache_clear()
