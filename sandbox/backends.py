"""The one place where it is chosen what judges: processors or a GPU."""

from kernelwright.sandbox.cpu import CpuBackend
from kernelwright.sandbox.gpu import GpuBackend
from kernelwright.sandbox.verdict.settings import Settings


def backend_of(settings: Settings) -> CpuBackend:
    return GpuBackend(settings) if settings.gpu else CpuBackend(settings)
