"""What judging on a CUDA device needs beyond the processor's: lent memory, a quiet device, honest clocks.

`driver` speaks to the device by ctypes alone; `buffers` holds the memory that the judge owns and lends, `witness` tells
whether the device was idle while it should have been; `lock`, `clocks` and `peaks` are the hygiene of timing. The
design and what it withstands is in docs/gpu.md. Importing any of it touches no device.
"""
