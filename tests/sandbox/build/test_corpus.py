"""The whole corpus, each case the stock way and ours: it builds in one exactly when in the other, to equal results."""

import json

import pytest

from kernelwright.sandbox.build import BuildStore, read_record
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.toolchain import prepare_headers, toolchain
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import driver, wire
from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.corpus_cuda import CUDA
from tests.sandbox.build.outcomes import (
    KERNEL,
    OWN,
    both_ways,
    device_code,
    first_error,
    functions,
    is_equal,
    outcome_of,
    ways_of,
)

pytestmark = [pytest.mark.corpus, pytest.mark.slow]
ON_DEVICE = [pytest.mark.gpu, pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device")]
EVERY = CORPUS | CUDA
UNOPTIMISED = {name for name, case in CORPUS.items() if "-O" not in case.build}


def named(choose=lambda case: True):
    chosen = {name: case for name, case in EVERY.items() if choose(case)}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=ON_DEVICE * (name in CUDA)) for name in chosen])


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


@pytest.fixture(scope="session")
def plan(prepared):
    return toolchain().plan(2**33)


@pytest.fixture(scope="session")
def both(plan, tmp_path_factory):
    return both_ways(tmp_path_factory.mktemp("corpus"), plan)


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


CANDIDATE = f'''
import torch
from torch.utils.cpp_extension import load_inline
try:
    open(HEADER, "w")
    raise SystemExit("a header could be written")
except OSError:
    pass
m = load_inline("ext", """{CORPUS["plain"].source}""", functions=["run"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return m.run(x)
'''


@pytest.fixture(scope="session")
def plain(plan, tmp_path_factory):
    """Folders and outcomes of the plain case: stock, ours."""
    top = tmp_path_factory.mktemp("plain")
    return (top / "stock", outcome_of("plain", top / "stock")), (top / "ours", outcome_of("plain", top / "ours", plan))


def test_an_ordinary_extension_is_built_with_the_light_header(plain):
    assert ways_of(plain[1][0])["main.cpp"] == "light"


def test_its_results_are_those_of_the_stock_build(plain):
    assert is_equal(plain[0][1]["results"], plain[1][1]["results"])


def test_without_the_light_header_the_object_file_is_the_stock_one_to_the_byte(plain, tmp_path):
    outcome_of("plain", tmp_path, toolchain().plan(2**33, light=False))
    assert ways_of(tmp_path)["main.cpp"] == "stock"
    assert (tmp_path / "ext" / "main.o").read_bytes() == (plain[0][0] / "ext" / "main.o").read_bytes()


def test_a_wrong_source_fails_at_once_with_the_light_header(plan, tmp_path):
    outcome = outcome_of("syntax", tmp_path, plan)
    assert not outcome["built"]
    assert "primary-expression" in outcome["error"]
    assert ways_of(tmp_path)["main.cpp"] == "light"


def test_a_source_that_clashes_with_the_stock_header_does_not_slip_through_with_the_light_one(plan, tmp_path):
    assert not outcome_of("a name that the whole header has", tmp_path, plan)["built"]


@pytest.fixture(scope="session")
def jailed(plan, prepared):
    folder = WorkFolder()
    header = next(prepared.folder.rglob("light/kernelwright/core.h"))
    source = folder.write("candidate.py", CANDIDATE.replace("HEADER", repr(str(header))))
    with Session("builder", folder, JudgeSettings()) as session:
        session.greet()
        session.ask(message("build", folder, source) | {"shortcuts": plan}, 300)
    yield folder
    folder.close()


def message(op, folder, source):
    tree = wire.pack([], [])
    places = {"source": str(source), "built": str(folder.path / "build")}
    return places | {"op": op, "entry": "ModelNew", "arguments": tree, "threads": 1, "cores": [0]}


def test_the_headers_can_be_read_in_the_jail_and_not_written(jailed):
    (compilation, *_) = read_record(jailed.path).compilations
    assert (compilation.way, compilation.failed) == ("light", ())


def test_a_stored_build_serves_a_worker_in_another_folder_without_a_builder(jailed, folder):
    store, key = BuildStore(), BuildStore.key("jailed", toolchain())
    assert store.keep(key, jailed.path / "build")
    assert store.restore(key, folder.path / "build")
    source = folder.write("candidate.py", (jailed.path / "candidate.py").read_text())
    with Session("worker", folder, JudgeSettings()) as session:
        session.greet()
        session.ask(message("load", folder, source), 60)
        assert "ext.so" in json.dumps([path.name for path in folder.path.rglob("*")])
