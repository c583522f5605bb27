"""The whole corpus, each case the stock way and ours: it builds in one exactly when in the other, to equal results."""

import pytest

from kernelwright.sandbox.toolchain import toolchain
from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.outcomes import KERNEL, OWN, both_ways, first_error, functions, is_equal

pytestmark = [pytest.mark.corpus, pytest.mark.slow]
UNOPTIMISED = {name for name, case in CORPUS.items() if "-O" not in case.build}


@pytest.fixture(scope="session")
def both(prepared, tmp_path_factory):
    return both_ways(tmp_path_factory.mktemp("corpus"), toolchain().plan(2**33))


@pytest.mark.parametrize("name", CORPUS)
def test_it_builds_exactly_when_the_stock_way_does(name, both):
    _, (stock, ours) = both(name)
    assert stock["built"] is not CORPUS[name].wrong, stock["error"]
    assert ours["built"] is stock["built"], ours["error"]


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.wrong])
def test_its_results_are_equal(name, both):
    _, (stock, ours) = both(name)
    assert is_equal(stock["results"], ours["results"])


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if case.wrong])
def test_its_first_error_is_the_same(name, both):
    _, (stock, ours) = both(name)
    assert first_error(ours["error"]) == first_error(stock["error"])


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.wrong])
def test_the_machine_code_of_its_kernels_is_the_same(name, both):
    folders, _ = both(name)
    pattern = OWN if name in UNOPTIMISED else KERNEL
    for path in (folders[0] / "ext").glob("*.o"):
        assert functions(path, pattern) == functions(folders[1] / "ext" / path.name, pattern)
