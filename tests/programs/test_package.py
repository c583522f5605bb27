"""A run's kernels as a package: it imports, runs and tests itself where kernelwright is not."""

import pytest

from kernelwright.problems import ProblemError
from kernelwright.programs.apply import kept_kernels, write_package
from tests.packaging.environments import Environment
from tests.support.programs import KERNEL, run_over_gates, script

BUILDING = KERNEL.replace(
    "import torch\n",
    '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cmath>
extern "C" void gate(const float* x, const float* gain, float* out, long rows, long columns) {
    for (long r = 0; r < rows; ++r)
        for (long c = 0; c < columns; ++c) out[r * columns + c] = x[r * columns + c] / (1 + std::exp(-gain[c]));
}
"""
import ctypes

path = load_inline(name="gate", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
gate = ctypes.CDLL(path).gate
gate.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
''',
    1,
).replace(
    "        return x / (1 + torch.exp(-self.gain))",
    "        out = torch.empty_like(x)\n"
    "        gate(x.data_ptr(), self.gain.data_ptr(), out.data_ptr(), *x.shape)\n"
    "        return out",
)
CHECK = """
import importlib.util, sys
assert importlib.util.find_spec("kernelwright") is None
import torch, network, gates
torch.manual_seed(1)
model = network.Network().eval()
x = torch.randn(4, network.COLUMNS)
with torch.no_grad():
    want = model(x)
    got = gates.apply(model)(x)
torch.testing.assert_close(got, want)
print([one.taken for one in gates.applied(model).kernels], "ninja" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_package_installs_runs_and_tests_itself_without_us(tmp_path):
    run = run_over_gates(tmp_path / "run", kernel=BUILDING)
    folder = tmp_path / "gates"
    assert write_package(folder, kept_kernels(run), "runs/x") == "OK"
    built = [path.suffix for path in (folder / "gates" / "built").rglob("*") if path.is_file()]
    assert built.count(".so") == 1 and set(built) == {".so", ".json"}
    script(tmp_path)
    environment = Environment(tmp_path / "environment").install(folder)
    # No compiler is to be found: what was built ahead of time is used.
    said = environment.run("-c", CHECK, cwd=tmp_path, CXX="/nowhere", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert said.startswith("[1, 1]")
    environment.run("-m", "gates.tests", cwd=tmp_path / "run", CXX="/nowhere")
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_a_kernel_that_is_wrong_makes_no_package(tmp_path):
    wrong = run_over_gates(tmp_path / "run", kernel=KERNEL.replace("1 + torch.exp", "1.01 + torch.exp"))
    with pytest.raises(ProblemError, match=r"not work here(.|\n)*not less"):
        write_package(tmp_path / "gates", kept_kernels(wrong), "runs/x")


@pytest.mark.parametrize("name", ["my-kernels", "class", "2fast"])
def test_a_folder_that_names_no_package_is_refused(tmp_path, name):
    with pytest.raises(ProblemError, match="names no package"):
        write_package(tmp_path / name, kept_kernels(run_over_gates(tmp_path / "run")), "runs/x")


def test_what_others_put_there_is_not_overwritten(tmp_path):
    (tmp_path / "gates" / "of others").mkdir(parents=True)
    with pytest.raises(ProblemError, match="no kernels"):
        write_package(tmp_path / "gates", kept_kernels(run_over_gates(tmp_path / "run")), "runs/x")
