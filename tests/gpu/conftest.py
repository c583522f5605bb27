import pytest
import torch

from sandbox.gpu import driver
from sandbox.gpu.device import Device


@pytest.fixture(scope="session")
def device():
    """The first device, locked for these tests."""
    if driver.device_count() == 0:
        pytest.skip("the driver sees no CUDA device")
    torch.zeros(1, device="cuda")
    with Device(wait_s=5) as held:
        yield held
