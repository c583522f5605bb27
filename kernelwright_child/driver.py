"""The part of the CUDA driver's interface that judge and workers need, by ctypes on libcuda. Standard library only.

The judge retains the device's primary context through it without torch, in a third of a second instead of several.
torch in the same process shares that context. All addresses are plain integers.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
import uuid
from contextlib import suppress
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
ATTRIBUTES = {
    "multiprocessors": 16,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "memory_management": 102,
    "posix_handles": 103,
    "persisting_l2_bytes": 108,
}
NON_BLOCKING, PERSISTING_L2_SIZE = 1, 6
HOST_MEMORY, DEVICE_MEMORY = 1, 2
NOT_READY = 600


class CudaError(Exception):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed: {name} ({code})")
        self.code = code


class NoDriver(CudaError):
    def __init__(self, why: str) -> None:
        super().__init__("loading libcuda", -1, why)


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("src_x", c_size_t), ("src_y", c_size_t), ("src_type", c_int), ("src_host", c_void_p),
        ("src_device", c_uint64), ("src_array", c_void_p), ("src_pitch", c_size_t),
        ("dst_x", c_size_t), ("dst_y", c_size_t), ("dst_type", c_int), ("dst_host", c_void_p),
        ("dst_device", c_uint64), ("dst_array", c_void_p), ("dst_pitch", c_size_t),
        ("width", c_size_t), ("height", c_size_t),
    )  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """Load and initialise libcuda. Raises `NoDriver` or `CudaError`."""
    try:
        loaded = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDriver(str(error)) from None
    code = loaded.cuInit(0)
    if code:
        raise CudaError("cuInit", code, _name(loaded, code))
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Integers must come wrapped (`c_uint64` for addresses). Raises `CudaError`."""
    loaded = library()
    checked(name, getattr(loaded, name)(*arguments))


def checked(name: str, code: int) -> None:
    if code:
        raise CudaError(name, code, _name(library(), code))


def _name(loaded: ctypes.CDLL, code: int) -> str:
    text = c_char_p()
    loaded.cuGetErrorName(code, byref(text))
    return (text.value or b"unknown error").decode()


def driver_version() -> str:
    """Return the newest CUDA that the driver supports, as `13.0`."""
    number = c_int()
    call("cuDriverGetVersion", byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def device_count() -> int:
    """Count the visible devices; 0 without a driver."""
    number = c_int()
    try:
        call("cuDeviceGetCount", byref(number))
    except CudaError:
        return 0
    return number.value


def toolkit_compiler() -> str | None:
    """Return the nvcc that torch uses: of CUDA_HOME, else on the path, else in its usual folder."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home and (Path(home) / "bin" / "nvcc").exists():
            return str(Path(home) / "bin" / "nvcc")
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def device_uuid(ordinal: int = 0) -> str:
    """Return the device's name as NVML and nvidia-smi write it: `GPU-...`. Makes no context."""
    device, raw = c_int(), (c_char * 16)()
    call("cuDeviceGet", byref(device), c_int(ordinal))
    call("cuDeviceGetUuid_v2", byref(raw), device)
    return f"GPU-{uuid.UUID(bytes=bytes(bytearray(raw)))}"


def device_name(ordinal: int = 0) -> str:
    """Return the device's model as the driver reports it. Makes no context."""
    device, buffer = c_int(), ctypes.create_string_buffer(256)
    call("cuDeviceGet", byref(device), c_int(ordinal))
    call("cuDeviceGetName", buffer, c_int(256), device)
    return buffer.value.decode()


class Context:
    """The primary context of one device, current on the thread that made it, to be closed."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._device = c_int()
        call("cuDeviceGet", byref(self._device), c_int(ordinal))
        self._context = c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self.make_current()

    def make_current(self) -> None:
        call("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        if self._context:
            call("cuDevicePrimaryCtxRelease_v2", self._device)
            self._context = c_void_p()

    @property
    def name(self) -> str:
        return device_name(self.ordinal)

    def attribute(self, name: str) -> int:
        value = c_int()
        call("cuDeviceGetAttribute", byref(value), c_int(ATTRIBUTES[name]), self._device)
        return value.value

    @property
    def architecture(self) -> str:
        """The compute capability as TORCH_CUDA_ARCH_LIST takes it: `9.0`."""
        return f"{self.attribute('major')}.{self.attribute('minor')}"

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total device memory."""
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def reset_persisting_l2(self) -> None:
        """Release pinned lines of the L2 cache, and allow none in this context."""
        call("cuCtxResetPersistingL2Cache")
        if self.attribute("persisting_l2_bytes"):
            call("cuCtxSetLimit", c_int(PERSISTING_L2_SIZE), c_size_t(0))


def begin_context(ordinal: int = 0) -> threading.Thread:
    """Start a thread that makes the device's primary context in a third of a second."""

    def begin() -> None:
        with suppress(CudaError):  # the first use of the device raises it again
            Context(ordinal)

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    return thread


def synchronize() -> None:
    call("cuCtxSynchronize")


def allocate(size: int) -> int:
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), c_size_t(size))
    return address.value


def free(address: int) -> None:
    call("cuMemFree_v2", c_uint64(address))


class Pinned:
    """Page-locked host memory for asynchronous copies of small results, to be closed."""

    def __init__(self, size: int) -> None:
        self.bytes = size
        pointer = c_void_p()
        call("cuMemHostAlloc", byref(pointer), c_size_t(size), c_uint(0))
        self.address = int(pointer.value or 0)

    def read(self, size: int) -> bytes:
        return ctypes.string_at(self.address, size)

    def close(self) -> None:
        if self.address:
            call("cuMemFreeHost", c_void_p(self.address))
            self.address = 0


class Stream:
    """A stream of the judge, for which no default stream waits, to be closed."""

    def __init__(self) -> None:
        self._stream = c_void_p()
        call("cuStreamCreate", byref(self._stream), c_uint(NON_BLOCKING))

    def copy(self, target: int, source: int, size: int) -> None:
        call("cuMemcpyDtoDAsync_v2", c_uint64(target), c_uint64(source), c_size_t(size), self._stream)

    def fill(self, target: int, word: int, count: int) -> None:
        """Fill `count` 32-bit words."""
        call("cuMemsetD32Async", c_uint64(target), c_uint(word), c_size_t(count), self._stream)

    def fill_bytes(self, target: int, byte: int, count: int) -> None:
        call("cuMemsetD8Async", c_uint64(target), ctypes.c_ubyte(byte), c_size_t(count), self._stream)

    def gather(self, target: int, source: int, pitch: int, rows: int) -> None:
        """Copy `rows` words of 4 bytes at a distance of `pitch` bytes to pinned host memory in one call."""
        copy = _Copy2D()
        copy.src_type, copy.src_device, copy.src_pitch = DEVICE_MEMORY, source, pitch
        copy.dst_type, copy.dst_host, copy.dst_pitch = HOST_MEMORY, target, 4
        copy.width, copy.height = 4, rows
        call("cuMemcpy2DAsync_v2", byref(copy), self._stream)

    def record(self, event: CudaEvent) -> None:
        call("cuEventRecord", event.event, self._stream)

    @property
    def handle(self) -> int:
        return int(self._stream.value or 0)

    @property
    def is_done(self) -> bool:
        code = library().cuStreamQuery(self._stream)
        if code not in (0, NOT_READY):
            checked("cuStreamQuery", code)
        return bool(code == 0)

    def wait(self) -> None:
        call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        if self._stream:
            call("cuStreamDestroy_v2", self._stream)
            self._stream = c_void_p()


def wait_value(stream: int, address: int, value: int) -> None:
    """Make a stream wait until the 32-bit word at an address is at least `value`, in cyclic order."""
    call("cuStreamWaitValue32_v2", c_void_p(stream), c_uint64(address), c_uint(value), c_uint(0))


def write_value(stream: int, address: int, value: int) -> None:
    """Make a stream write a 32-bit word after its earlier work, with a memory barrier before it."""
    call("cuStreamWriteValue32_v2", c_void_p(stream), c_uint64(address), c_uint(value), c_uint(0))


class CudaEvent:
    def __init__(self) -> None:
        self.event = c_void_p()
        call("cuEventCreate", byref(self.event), c_uint(0))

    def since(self, earlier: CudaEvent) -> float:
        """Return the ms from another event to this one; both must have happened."""
        elapsed = c_float()
        call("cuEventElapsedTime", byref(elapsed), earlier.event, self.event)
        return elapsed.value

    def close(self) -> None:
        if self.event:
            call("cuEventDestroy_v2", self.event)
            self.event = c_void_p()


def copy(target: int, source: int, size: int) -> None:
    """Copy from device to device, in the order of the default stream."""
    if size:
        call("cuMemcpyDtoD_v2", c_uint64(target), c_uint64(source), c_size_t(size))


# Device memory that two processes share. The maker of a `Shared` exports a descriptor. The handle of an allocation
# (`ipc_handle`) works for memory of cudaMalloc, which torch uses.

PINNED, POSIX_FD, ON_DEVICE, READ_AND_WRITE = 1, 1, 1, 3
MINIMUM_GRANULARITY, LAZY_PEER_ACCESS = 0, 1
HANDLE_BYTES = 64
BUFFER_ID = 7
DONE_OFFSET = 128
"""Offset in bytes of the word for finished calls after the word for available inputs."""


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (("type", c_int), ("handles", c_int), ("location", _Location), ("windows", c_void_p), ("flags", _Flags))


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("data", c_char * HANDLE_BYTES),)


class Shared:
    """Mapped device memory behind a file descriptor, made here or imported from its maker, to be closed."""

    def __init__(self, ordinal: int, size: int, fd: int | None = None) -> None:
        """Make the memory, or import it from `fd`; then `size` must be the maker's `bytes`."""
        location = _Location(ON_DEVICE, ordinal)
        properties = _Properties(PINNED, POSIX_FD, location, None, _Flags())
        grain = c_size_t()
        call("cuMemGetAllocationGranularity", byref(grain), byref(properties), c_int(MINIMUM_GRANULARITY))
        self.bytes = -(-max(size, 1) // grain.value) * grain.value
        self._handle = c_uint64()
        self.address = 0
        if fd is None:
            call("cuMemCreate", byref(self._handle), c_size_t(self.bytes), byref(properties), c_uint64(0))
        else:
            call("cuMemImportFromShareableHandle", byref(self._handle), c_void_p(fd), c_int(POSIX_FD))
        try:
            self._map(location)
        except BaseException:
            self.close()
            raise

    def _map(self, location: _Location) -> None:
        address = c_uint64()
        size = c_size_t(self.bytes)
        call("cuMemAddressReserve", byref(address), size, c_size_t(0), c_uint64(0), c_uint64(0))
        try:
            call("cuMemMap", address, size, c_size_t(0), self._handle, c_uint64(0))
        except BaseException:
            call("cuMemAddressFree", address, size)
            raise
        self.address = address.value
        access = _Access(location, READ_AND_WRITE)
        call("cuMemSetAccess", address, size, byref(access), c_size_t(1))

    def export(self) -> int:
        """Return a new descriptor for another process; the caller closes it."""
        fd = c_int(-1)
        call("cuMemExportToShareableHandle", byref(fd), self._handle, c_int(POSIX_FD), c_uint64(0))
        return fd.value

    def close(self) -> None:
        """Unmap; the memory is freed with the last mapping of any process."""
        if self.address:
            call("cuMemUnmap", c_uint64(self.address), c_size_t(self.bytes))
            call("cuMemAddressFree", c_uint64(self.address), c_size_t(self.bytes))
            self.address = 0
        if self._handle:
            call("cuMemRelease", self._handle)
            self._handle = c_uint64()


def chain_obstacle(ordinal: int = 0) -> str:
    """Return the reason why calls of another process cannot be issued ahead here; empty where they can.

    Stream operations on shared memory and handles of allocations are tried. MPS runs kernels of several processes at
    the same time, so inputs could be used while they are written. The calling thread needs a context.
    """
    if (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists():
        return "MPS lets kernels of several processes run side by side"
    try:
        shared, stream, own = Shared(ordinal, 1), Stream(), allocate(2**21)
        write_value(stream.handle, shared.address, 1)
        wait_value(stream.handle, shared.address, 1)
        stream.wait()
        ipc_handle(own)
        free(own)
        stream.close()
        shared.close()
    except CudaError as error:
        return str(error)
    return ""


def address_range(address: int) -> tuple[int, int]:
    """Return first address and size of the allocation that holds an address."""
    base, size = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(address))
    return base.value, size.value


def allocation_id(address: int) -> int:
    """Return the number of the allocation that holds an address, unique in this process for all time."""
    number = c_uint64()
    call("cuPointerGetAttribute", byref(number), c_int(BUFFER_ID), c_uint64(address))
    return number.value


def ipc_handle(base: int) -> bytes:
    """Return a handle for other processes of the allocation that starts here; only for memory of cudaMalloc."""
    handle = _Handle()
    call("cuIpcGetMemHandle", byref(handle), c_uint64(base))
    return bytes(ctypes.string_at(byref(handle), HANDLE_BYTES))


def ipc_open(handle: bytes) -> int:
    if len(handle) != HANDLE_BYTES:
        raise ValueError(f"a handle of {len(handle)} bytes, where {HANDLE_BYTES} are wanted")
    address = c_uint64()
    function = library().cuIpcOpenMemHandle_v2
    function.argtypes = (c_void_p, _Handle, c_uint)
    code = function(ctypes.addressof(address), _Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
    checked("cuIpcOpenMemHandle", code)
    return address.value


def ipc_close(address: int) -> None:
    call("cuIpcCloseMemHandle", c_uint64(address))
