"""The peaks of whatever a candidate runs on here."""

from kernelwright.sandbox.floor import processor
from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.verdict.peaks import Peaks


def peaks_here(gpu: bool, threads: int) -> Peaks:
    """Those of the first GPU, or of the processor with so many threads; measured where they are not remembered.

    Raises `MachineError` where they can not be had.
    """
    if not gpu:
        return processor.processor_peaks(threads)
    from kernelwright.sandbox.floor.gpu_peaks import device_peaks

    return device_peaks()


def known_peaks_here(gpu: bool, threads: int, store: Store | None = None) -> Peaks | None:
    """The same without measuring: None where they are not remembered."""
    if not gpu:
        return processor.known_peaks(threads, store)
    from kernelwright.sandbox.floor.gpu_peaks import known_peaks

    return known_peaks(store=store)
