"""The memory in which all references of a problem see inputs: they are trusted, and called one after the other."""

from kernelwright.sandbox.calls.buffers import Layout, Lent
from kernelwright.sandbox.calls.device import CudaDevice
from kernelwright.sandbox.verdict.errors import BrokenProblem


class SharedInputs:
    """One allocation for all references of a problem, made when its layout is known. Close it."""

    def __init__(self) -> None:
        self._lent: Lent | None = None

    def for_layout(self, layout: Layout, device: CudaDevice) -> Lent:
        """The memory; all references have one layout, since those that see it would go on seeing it."""
        if self._lent is None:
            device.make_current()
            self._lent = Lent(layout, device.ordinal)
            device.calibrate(self._lent)
        if not self._lent.is_for(layout):
            raise BrokenProblem("get_inputs gives tensors of another shape or dtype under another seed; let it not")
        return self._lent

    def close(self) -> None:
        if self._lent is not None:
            self._lent.close()
            self._lent = None
