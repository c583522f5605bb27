import pytest
import torch

from kernelwright.sandbox.calls.gpu_device import device_of
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright_child import driver


@pytest.fixture(scope="session")
def device():
    """The first device, locked for these tests."""
    if driver.device_count() == 0:
        pytest.skip("the driver sees no CUDA device")
    torch.zeros(1, device="cuda")
    held = device_of(JudgeSettings(device="cuda"))
    with held.hold():
        yield held
