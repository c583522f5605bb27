"""A few cases of the corpus for every day: a light header that serves, one that does not, and a wrong source."""

import json

import pytest

from kernelwright.sandbox.build import BuildStore, read_record
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.toolchain import toolchain
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import wire
from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.outcomes import is_equal, outcome_of, ways_of

pytestmark = [pytest.mark.corpus, pytest.mark.slow]
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
def plan(prepared):
    return toolchain().plan(2**33)


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
    return {"op": op, "source": str(source), "entry": "ModelNew", "built": str(folder.path / "build")} | {
        "arguments": tree,
        "threads": 1,
        "cores": [0],
    }


def test_the_headers_can_be_read_in_the_jail_and_not_written(jailed):
    (compilation, *_) = read_record(jailed.path).compilations
    assert (compilation.way, compilation.failed) == ("light", ())


def test_a_stored_build_serves_a_worker_in_another_folder_without_a_builder(jailed):
    store, key = BuildStore(), BuildStore.key("jailed", toolchain())
    assert store.keep(key, jailed.path / "build")
    folder = WorkFolder()
    try:
        assert store.restore(key, folder.path / "build")
        source = folder.write("candidate.py", (jailed.path / "candidate.py").read_text())
        with Session("worker", folder, JudgeSettings()) as session:
            session.greet()
            session.ask(message("load", folder, source), 60)
            assert "ext.so" in json.dumps([path.name for path in folder.path.rglob("*")])
    finally:
        folder.close()
