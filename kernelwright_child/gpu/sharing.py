"""Device memory that two processes can have: by file descriptor, or by the name of another's allocation.

The former is made for lending: whoever made it hands out a descriptor. The latter works for what a process allocated
with cudaMalloc, as torch does. By ctypes on libcuda; standard library only.
"""

import ctypes
import os
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from pathlib import Path

from kernelwright_child.gpu import driver

PINNED, POSIX_FD, ON_DEVICE, READ_AND_WRITE = 1, 1, 1, 3
MINIMUM_GRANULARITY, LAZY_PEER_ACCESS = 0, 1
HANDLE_BYTES = 64
BUFFER_ID = 7
DONE_OFFSET = 128
"""Of the word that says which call is done, in bytes behind the word that says which inputs are there."""


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

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("windows", c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("data", c_char * HANDLE_BYTES),)


class Shared:
    """Device memory behind a file descriptor: made here, or imported from whoever made it. Mapped; close it."""

    def __init__(self, ordinal: int, size: int, fd: int | None = None) -> None:
        """`fd` None: make it. Else import it; `size` must be the maker's `bytes`."""
        location = _Location(ON_DEVICE, ordinal)
        properties = _Properties(PINNED, POSIX_FD, location, None, _Flags())
        grain = c_size_t()
        driver.call("cuMemGetAllocationGranularity", byref(grain), byref(properties), c_int(MINIMUM_GRANULARITY))
        self.bytes = -(-max(size, 1) // grain.value) * grain.value
        self._handle = c_uint64()
        self.address = 0
        if fd is None:
            driver.call("cuMemCreate", byref(self._handle), c_size_t(self.bytes), byref(properties), c_uint64(0))
        else:
            driver.call("cuMemImportFromShareableHandle", byref(self._handle), c_void_p(fd), c_int(POSIX_FD))
        try:
            self._map(location)
        except BaseException:
            self.close()
            raise

    def _map(self, location: _Location) -> None:
        address = c_uint64()
        size = c_size_t(self.bytes)
        driver.call("cuMemAddressReserve", byref(address), size, c_size_t(0), c_uint64(0), c_uint64(0))
        try:
            driver.call("cuMemMap", address, size, c_size_t(0), self._handle, c_uint64(0))
        except BaseException:
            driver.call("cuMemAddressFree", address, size)
            raise
        self.address = address.value
        access = _Access(location, READ_AND_WRITE)
        driver.call("cuMemSetAccess", address, size, byref(access), c_size_t(1))

    def export(self) -> int:
        """A new descriptor for another process; the caller closes it."""
        fd = c_int(-1)
        driver.call("cuMemExportToShareableHandle", byref(fd), self._handle, c_int(POSIX_FD), c_uint64(0))
        return fd.value

    def close(self) -> None:
        """Unmap; the memory goes when every process has done so."""
        if self.address:
            driver.call("cuMemUnmap", c_uint64(self.address), c_size_t(self.bytes))
            driver.call("cuMemAddressFree", c_uint64(self.address), c_size_t(self.bytes))
            self.address = 0
        if self._handle:
            driver.call("cuMemRelease", self._handle)
            self._handle = c_uint64()


def chain_obstacle(ordinal: int = 0) -> str:
    """Why calls of another process cannot be issued ahead and dealt inputs to here; empty where they can.

    Stream operations on shared memory and names of allocations are tried. Where MPS runs kernels of several processes
    side by side, what is dealt could be worked on as it comes. The calling thread needs a context.
    """
    if (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists():
        return "MPS lets kernels of several processes run side by side"
    try:
        shared, stream, own = Shared(ordinal, 1), driver.Stream(), driver.allocate(2**21)
        driver.write_value(stream.handle, shared.address, 1)
        driver.wait_value(stream.handle, shared.address, 1)
        stream.wait()
        ipc_handle(own)
        driver.free(own)
        stream.close()
        shared.close()
    except driver.CudaError as error:
        return str(error)
    return ""


def address_range(address: int) -> tuple[int, int]:
    """First address and size of the allocation that holds an address."""
    base, size = c_uint64(), c_size_t()
    driver.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(address))
    return base.value, size.value


def allocation_id(address: int) -> int:
    """Number of the allocation that holds an address: no other of this process has it, nor ever had."""
    number = c_uint64()
    driver.call("cuPointerGetAttribute", byref(number), c_int(BUFFER_ID), c_uint64(address))
    return number.value


def ipc_handle(base: int) -> bytes:
    """A name, for other processes, of the allocation that starts here; only for memory of cudaMalloc."""
    handle = _Handle()
    driver.call("cuIpcGetMemHandle", byref(handle), c_uint64(base))
    return bytes(ctypes.string_at(byref(handle), HANDLE_BYTES))


def ipc_open(handle: bytes) -> int:
    """Map another process's allocation."""
    if len(handle) != HANDLE_BYTES:
        raise ValueError(f"a handle of {len(handle)} bytes, where {HANDLE_BYTES} are wanted")
    address = c_uint64()
    function = driver.library().cuIpcOpenMemHandle_v2
    function.argtypes = (c_void_p, _Handle, c_uint)
    code = function(ctypes.addressof(address), _Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
    driver.checked("cuIpcOpenMemHandle", code)
    return address.value


def ipc_close(address: int) -> None:
    """Unmap what `ipc_open` mapped."""
    driver.call("cuIpcCloseMemHandle", c_uint64(address))
