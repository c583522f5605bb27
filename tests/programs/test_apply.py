"""Kernels of a run put into the model by name; the others are left out with the reason."""

import os

import pytest
import torch

from kernelwright import applied, apply
from kernelwright.problems import ProblemError
from kernelwright.programs.guarded import NoPlace
from kernelwright.programs.placing import INCLUDED, module_of, started
from kernelwright.sandbox.machine import package_headers
from kernelwright.sandbox.storage import all_entries
from tests.support.programs import COLUMNS, KERNEL, ROWS, Network, run_over_gates
from tests.support.runs import doubted, failed, made_run, passed


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))


def test_the_best_kernel_of_a_run_stands_in_the_model(tmp_path):
    model, x = Network().eval(), torch.randn(ROWS, COLUMNS)
    with torch.no_grad():
        want = model(x)
        assert apply(model, run_over_gates(tmp_path / "run")) is model
        torch.testing.assert_close(model(x), want)
    assert [(one.name, one.taken) for one in applied(model).kernels] == [("first", 1), ("second", 1)]


def test_applied_twice_there_is_one_kernel_in_each_place(tmp_path):
    model, run = Network().eval(), run_over_gates(tmp_path / "run")
    apply(apply(model, run), run)
    assert type(model.first).__mro__.count(type(model.first).__base__) == 1
    assert len(applied(model).kernels) == 2


def test_what_was_applied_counts_to_what_is_kept_and_the_longest_unused_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE_GIB", "0")
    model = Network().eval()
    for number in range(3):
        apply(model, run_over_gates(tmp_path / f"run-{number}", kernel=f"{KERNEL}\n# {number}\n"))
    (last,) = all_entries().entries()
    assert last.parent == tmp_path / "cache" / "applied" and list(last.parent.iterdir()) == [last]
    assert (last / "gate" / "candidate.py").read_text().endswith("# 2\n")


@pytest.mark.parametrize(
    ("verdict", "why"),
    [(failed(), "no correct kernel"), (passed(0.5), "not faster.* 0.50 x"), (passed(3.0, weak=True), "lazy answer")],
)
def test_what_is_not_right_or_not_faster_stays_out(tmp_path, verdict, why):
    with pytest.raises(NoPlace, match=f"gate: .*{why}"):
        apply(Network(), run_over_gates(tmp_path / "run", verdict=verdict))


def test_a_kernel_whose_saving_is_unconfirmed_is_put_in(tmp_path):
    model = Network().eval()
    apply(model, run_over_gates(tmp_path / "run", verdict=doubted(1.5, "unconfirmed")))
    assert len(applied(model).kernels) == 2


def test_a_run_over_plain_problems_is_refused(tmp_path):
    made_run(tmp_path / "run", problems=1, attempts=1)
    with pytest.raises(ProblemError, match="no parts of a program"):
        apply(Network(), tmp_path / "run")


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
