"""The peaks of whatever a candidate runs on here."""

from sandbox.floor import processor
from sandbox.floor.peaks import Peaks


def peaks_here(gpu: bool, threads: int) -> Peaks:
    """Those of the first GPU, or of the processor with so many threads; measured where they are not remembered.

    Raises `MachineError` where they can not be had.
    """
    if not gpu:
        return processor.processor_peaks(threads)
    from sandbox.gpu.peaks import device_peaks

    return device_peaks()
