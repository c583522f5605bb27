"""The whole corpus, each case the stock way and ours: it builds in one exactly when in the other, to equal results."""

import pytest

from kernelwright.sandbox.toolchain import toolchain
from kernelwright_child import driver
from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.corpus_cuda import CUDA
from tests.sandbox.build.outcomes import KERNEL, OWN, both_ways, device_code, first_error, functions, is_equal, ways_of

pytestmark = [pytest.mark.corpus, pytest.mark.slow]
ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device"),
]
EVERY = CORPUS | CUDA
UNOPTIMISED = {name for name, case in CORPUS.items() if "-O" not in case.build}


def named(choose=lambda case: True):
    chosen = {name: case for name, case in EVERY.items() if choose(case)}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=ON_DEVICE * (name in CUDA)) for name in chosen])


@pytest.fixture(scope="session")
def both(prepared, tmp_path_factory):
    return both_ways(tmp_path_factory.mktemp("corpus"), toolchain().plan(2**33))


@named()
def test_it_builds_exactly_when_the_stock_way_does(name, both):
    _, (stock, ours) = both(name)
    assert stock["built"] is not EVERY[name].wrong, stock["error"]
    assert ours["built"] is stock["built"], ours["error"]


@named(lambda case: not case.wrong)
def test_its_results_are_equal(name, both):
    _, (stock, ours) = both(name)
    assert is_equal(stock["results"], ours["results"])


@named(lambda case: case.wrong)
def test_its_first_error_is_the_same(name, both):
    _, (stock, ours) = both(name)
    assert first_error(ours["error"]) == first_error(stock["error"])


@named(lambda case: not case.wrong)
def test_the_machine_code_of_its_kernels_is_the_same(name, both):
    folders, _ = both(name)
    if name in CUDA:
        assert device_code(folders[0] / "ext" / "ext.so") == device_code(folders[1] / "ext" / "ext.so")
        return
    pattern = OWN if name in UNOPTIMISED else KERNEL
    for path in (folders[0] / "ext").glob("*.o"):
        assert functions(path, pattern) == functions(folders[1] / "ext" / path.name, pattern)


@pytest.mark.parametrize("name", [pytest.param("cuda plain", marks=ON_DEVICE)])
def test_an_ordinary_kernel_is_built_with_the_light_header(name, both):
    ways = ways_of(both(name)[0][1])
    assert (ways["cuda.cu"], ways["main.cpp"]) == ("light", "light")
