"""A CUDA candidate in the jail: it builds with nvcc and runs, and is kept from network and /etc all the same."""

import os

import pytest
import torch

from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail import layers as jail
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
SOURCE = '''
import ctypes, os, socket
import torch
from torch.utils.cpp_extension import load_inline

TWICE = r"""
__global__ void twice_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" int twice(const float* x, float* y, int n) {
    twice_kernel<<<(n + 255) / 256, 256>>>(x, y, n);
    return cudaDeviceSynchronize();
}
"""
options = {"no_implicit_headers": True, "is_python_module": False}
path = load_inline(name="twice", cpp_sources=[""], cuda_sources=[TWICE], **options)
x = torch.arange(100_000.0, device="cuda")
y = torch.empty_like(x)
status = ctypes.CDLL(path).twice(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), x.numel())
assert status == 0, status
assert torch.equal(y, 2 * x)
square = torch.ones(512, 512, device="cuda")
assert (square @ square)[0, 0].item() == 512

def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False

assert refused(lambda: socket.create_connection(("127.0.0.1", 22), timeout=2))
assert refused(lambda: socket.create_connection(("1.1.1.1", 80), timeout=2))
assert refused(lambda: open("/etc/kw-hostile", "w"))
assert refused(lambda: open("/usr/kw-hostile", "w"))

def ModelNew():
    pass
'''


@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "alone"])
def test_a_cuda_candidate_builds_and_runs_in_the_jail(without):
    if not without and bubblewrap.obstacle():
        pytest.skip(f"no namespaces: {bubblewrap.obstacle()}")
    if without and not jail.landlock_abi():
        pytest.skip("this kernel has no landlock")
    folder = WorkFolder()
    try:
        with Session("builder", folder, JudgeSettings(device="cuda", jail_without=without)) as session:
            session.greet()
            message = {
                "op": "build",
                "source": str(folder.write("candidate.py", SOURCE)),
                "entry": "ModelNew",
                "built": str(folder.path / "build"),
                "threads": 1,
                "cores": sorted(os.sched_getaffinity(0)),
                "arguments": {"l": []},
            }
            assert "error" not in session.ask(message, 240)
    finally:
        folder.close()
