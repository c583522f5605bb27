"""The memory in which all references of a problem see inputs: they are trusted, and called one after the other."""

from sandbox.gpu.buffers import Layout, Lent
from sandbox.gpu.device import Device


class SharedInputs:
    """One allocation for all references of a problem, made when its layout is known. Close it."""

    def __init__(self) -> None:
        self._lent: Lent | None = None
        self._layout: Layout = ()

    def for_layout(self, layout: Layout, device: Device) -> Lent:
        """The memory; for another layout than before it is made anew, so ask again then."""
        if self._lent is None or list(self._layout) != list(layout):
            self.close()
            device.make_current()
            self._lent, self._layout = Lent(layout, device.ordinal), layout
            device.calibrate(self._lent)
        return self._lent

    def close(self) -> None:
        """Give it back."""
        if self._lent is not None:
            self._lent.close()
            self._lent = None
