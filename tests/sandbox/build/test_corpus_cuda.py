import pytest

from kernelwright.sandbox.toolchain import toolchain
from kernelwright_child import driver
from tests.sandbox.build.corpus_cuda import CUDA
from tests.sandbox.build.outcomes import both_ways, device_code, first_error, is_equal, ways_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.corpus,
    pytest.mark.slow,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]


@pytest.fixture(scope="session")
def both(prepared, tmp_path_factory):
    return both_ways(tmp_path_factory.mktemp("corpus"), toolchain().plan(2**33))


@pytest.mark.parametrize("name", CUDA)
def test_it_builds_exactly_when_the_stock_way_does(name, both):
    _, (stock, ours) = both(name)
    assert stock["built"] is not CUDA[name].wrong, stock["error"]
    assert ours["built"] is stock["built"], ours["error"]


@pytest.mark.parametrize("name", [name for name, case in CUDA.items() if not case.wrong])
def test_its_results_and_its_device_code_are_equal(name, both):
    folders, (stock, ours) = both(name)
    assert is_equal(stock["results"], ours["results"])
    assert device_code(folders[0] / "ext" / "ext.so") == device_code(folders[1] / "ext" / "ext.so")


@pytest.mark.parametrize("name", [name for name, case in CUDA.items() if case.wrong])
def test_its_first_error_is_the_same(name, both):
    _, (stock, ours) = both(name)
    assert first_error(ours["error"]) == first_error(stock["error"])


def test_an_ordinary_kernel_is_built_with_the_light_header(both):
    folders, _ = both("cuda plain")
    ways = ways_of(folders[1])
    assert (ways["cuda.cu"], ways["main.cpp"]) == ("light", "light")
