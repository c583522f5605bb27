import pytest
import torch

from kernelwright.sandbox.calls.gpu_device import first_device
from kernelwright_child import driver


@pytest.fixture(scope="session")
def device():
    """The first device, locked for these tests."""
    if driver.device_count() == 0:
        pytest.skip("the driver sees no CUDA device")
    torch.zeros(1, device="cuda")
    held = first_device()
    with held.hold():
        yield held
