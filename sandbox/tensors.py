"""Values of calls in the judge: trees of tensors as bytes, never an object of a child.

Tensors are read from a child's memory, or lie in a mapping that is shared with it.
"""

import ctypes
import errno
import fcntl
import math
import mmap
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright_child.wire import CHANGED_INPUT, RESULT


def is_shared(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Check for elements at the same address, as from `expand` and overlapping windows."""
    if 0 in shape:
        return False
    reach, is_nested = 1, True
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        is_nested = is_nested and step >= reach
        reach += (size - 1) * step
    count = math.prod(shape)
    if is_nested:
        return False
    if count > reach:
        return True
    # Interleaved axes need not overlap, so elements are counted.
    taken = torch.zeros(reach, dtype=torch.bool)
    taken.as_strided(tuple(shape), tuple(stride)).fill_(True)
    return int(taken.sum()) < count


LOOK_BYTES = 2**28
"""Size of pieces in comparisons of device memory, where torch stores a result per element first."""

PLAIN_DTYPES = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    }
)
"""Names of the dtypes that torch can copy, widen and compare. Others are bits without meaning, parts of a byte, or
quantized, which raw bytes do not show."""


class DeviceBytes:
    """Bytes in device memory of the judge alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return self.tensor.numel()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceBytes) and same_bytes(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]  # as of a bytearray


class ShownBytes(DeviceBytes):
    """Device bytes in a trusted child's memory, valid until its next question unless `own` copies them."""

    def own(self) -> None:
        """Become a copy, for all references to this object."""
        if self._is_shown:
            self.tensor, self._is_shown = self.tensor.clone(), False

    _is_shown = True


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors of bytes, with little additional memory."""
    if one.numel() != other.numel():
        return False
    return all(
        torch.equal(mine, theirs)
        for pair in words(one, other)
        for mine, theirs in zip(*(torch.split(part, LOOK_BYTES // 8) for part in pair), strict=True)
    )


def words(one: torch.Tensor, other: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Split both into words of 8 bytes, where both are aligned, and remaining bytes."""
    even = all(tensor.data_ptr() % 8 == 0 and tensor.storage_offset() % 8 == 0 for tensor in (one, other))
    body = one.numel() // 8 * 8 if even else 0
    pairs = [(one[:body].view(torch.int64), other[:body].view(torch.int64))] if body else []
    return pairs + ([(one[body:], other[body:])] if body < one.numel() else [])


class RawTensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytearray | DeviceBytes
    is_shared: bool = False
    """Whether elements shared an address in the child."""

    @classmethod
    def laid(cls, tensor: torch.Tensor, data: bytearray | DeviceBytes) -> "RawTensor":
        """Return these bytes, of which `tensor` is a view in the child's layout, made contiguous."""
        if tensor.is_contiguous():
            return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
        return cls.of(tensor)._replace(is_shared=is_shared(tensor.shape, tensor.stride()))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "RawTensor":
        """Return the bytes of a tensor, made contiguous, on its own device."""
        tensor, on_device = tensor.detach(), tensor.is_cuda
        name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if on_device or tensor.is_contiguous():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            return cls(name, shape, DeviceBytes(flat) if on_device else bytearray(flat.numpy().data))
        data = bytearray(tensor.numel() * tensor.element_size())
        torch.frombuffer(data, dtype=tensor.dtype).view(shape).copy_(tensor)
        return cls(name, shape, data)

    @property
    def on_host(self) -> bytearray:
        assert isinstance(self.data, bytearray)
        return self.data

    def copied(self) -> "RawTensor":
        data = self.data
        return self._replace(data=DeviceBytes(data.tensor.clone()) if isinstance(data, DeviceBytes) else data[:])

    def tensor(self) -> torch.Tensor:
        """Return the values as a tensor over the same bytes; treat it as read-only."""
        dtype = getattr(torch, self.dtype)
        if isinstance(self.data, DeviceBytes):
            return self.data.tensor.view(dtype).view(self.shape)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype).view(self.shape)


class Values(NamedTuple):
    """Arguments or a result: a tree of `kernelwright_child.wire`, and the bytes of its tensors."""

    tree: dict[str, Any]
    tensors: tuple[RawTensor, ...]
    seed: int | None = None
    """For arguments, the seed of the call's own draws; None for random ones."""

    def copied(self) -> "Values":
        """Return a copy, for values that are a part of larger ones."""
        return self._replace(tensors=tuple(raw.copied() for raw in self.tensors))

    def owned(self) -> "Values":
        """Copy tensors that lie in a child's memory."""
        for raw in self.tensors:
            if isinstance(raw.data, ShownBytes):
                raw.data.own()
        return self

    @property
    def size(self) -> int:
        return sum(len(raw.data) for raw in self.tensors)


NUMBER = "a number"
DEEPEST = 32
LONGEST_KEY, LONGEST_STRUCTURE = 40, 150
"""Longest keys and structures in characters, so that a reason can contain two structures."""
SCALARS = (int, float, str, type(None))


class Flat(NamedTuple):
    shape: Any
    """The nesting, with sorted dicts, and without the values of tensors and floats."""
    tensors: tuple[RawTensor, ...]
    """The tensors and floats in the order of `shape`; a float is a tensor without axes."""
    labels: tuple[str, ...]
    """Positions of the tensors: `the output`, `output 1`, `output 'mean'`."""


def is_sound(tree: Any, tensors: int, depth: int = 0) -> bool:
    """Check for a tree of `kernelwright_child.wire` over this many tensors, since a child may send anything."""
    if depth > DEEPEST or not isinstance(tree, dict) or len(tree) != 1:
        return False
    ((kind, body),) = tree.items()
    if kind in ("l", "p"):
        return isinstance(body, list) and all(is_sound(item, tensors, depth + 1) for item in body)
    if kind == "d":
        entries = body if isinstance(body, list) else [None]
        pairs = [entry for entry in entries if isinstance(entry, list) and len(entry) == 2]
        are_named = len(pairs) == len(entries) and all(isinstance(key, str) for key, _ in pairs)
        return are_named and all(is_sound(item, tensors, depth + 1) for _, item in pairs)
    if kind == "t":
        return type(body) is int and 0 <= body < tensors
    return isinstance(body, SCALARS if kind == "v" else str) and kind in ("v", "dtype")


def described(answer: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the tree and the claims of a child's answer. Raises `MemoryReadError` for an answer of another form."""
    tree, claims = answer.get("tree"), answer.get("tensors")
    if not isinstance(tree, dict) or not isinstance(claims, list) or not names_each(tree, len(claims)):
        raise MemoryReadError("the child described its result in a form that cannot be read")
    return tree, claims


def names_each(tree: dict[str, Any], claims: int) -> bool:
    """Return whether it is a tree with each claim once: one could stand for several tensors."""
    return is_sound(tree, claims) and sorted(_places(tree)) == list(range(claims))


def _places(node: dict[str, Any]) -> Iterator[int]:
    ((kind, body),) = node.items()
    if kind == "t":
        yield body
    elif kind in ("l", "p", "d"):
        for item in body:
            yield from _places(item[1] if kind == "d" else item)


def flatten(values: Values) -> Flat:
    """Return the structure of a result and its values in the order of the structure.

    The order of dicts does not matter. Integers, booleans, strings and None are part of the structure, so they must
    agree exactly; floats may differ by rounding like elements of tensors.
    """
    if not is_sound(values.tree, len(values.tensors)):
        return Flat("malformed", (), ())
    walk = _Walk(values.tensors)
    shape = walk.over(values.tree, "")
    return Flat(shape, tuple(walk.tensors), tuple(walk.labels))


class _Walk:
    """A walk over one tree. A recursive closure would be a cycle that keeps gigabytes until it is collected."""

    def __init__(self, given: Sequence[RawTensor]) -> None:
        self._given = given
        self.tensors: list[RawTensor] = []
        self.labels: list[str] = []

    def over(self, node: dict[str, Any], path: str) -> Any:
        ((kind, body),) = node.items()
        if kind == "t":
            self.tensors.append(self._given[body])
            is_changed = path.endswith(" after the call")  # a result's own keys are quoted
            self.labels.append(path if is_changed else f"output {path}" if path else "the output")
            return "a tensor"
        if kind == "v" and isinstance(body, float):
            self.tensors.append(RawTensor.of(torch.tensor(body, dtype=torch.float32)))
            self.labels.append(f"number {path}" if path else "the number")
            return NUMBER
        if kind in ("l", "p"):
            items = ((f"{path}[{index}]" if path else str(index), item) for index, item in enumerate(body))
            return ("list" if kind == "l" else "tuple", tuple(self.over(item, name) for name, item in items))
        if kind == "d":
            entries = sorted(body, key=lambda entry: str(entry[0]))
            if not path and RESULT in [key for key, _ in entries]:
                named = (("" if key == RESULT else one_line(key, LONGEST_KEY), key, item) for key, item in entries)
            else:
                named = ((f"{path}[{_named(key)}]" if path else _named(key), key, item) for key, item in entries)
            return ("dict", tuple((key, self.over(item, name)) for name, key, item in named))
        return (type(body).__name__, body)


def _named(key: str) -> str:
    """Return a key, which a child may have made, in limited length."""
    return one_line(repr(key), LONGEST_KEY)


def show(shape: Any) -> str:
    return one_line(_words(shape), LONGEST_STRUCTURE)


def _words(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    kind, body = shape
    if kind in ("list", "tuple"):
        return f"a {kind} of ({', '.join(map(_words, body))})"
    if kind == "dict":
        return "a dict of (" + ", ".join(f"{one_line(key, LONGEST_KEY)}: {_words(item)}" for key, item in body) + ")"
    return one_line(repr(body), LONGEST_KEY)


def with_changed(result: Values, inputs: Mapping[int, RawTensor]) -> Values:
    """Return a result with these changed inputs, if any, as further outputs."""
    if not inputs:
        return result
    first = len(result.tensors)
    entries = [[CHANGED_INPUT.format(index), {"t": number}] for number, index in enumerate(inputs, first)]
    return Values({"d": [[RESULT, result.tree], *entries]}, (*result.tensors, *inputs.values()))


def poisoned(values: Values, index: int) -> Values:
    """Return the values with NaN in one tensor; for dtypes without NaN, 1 for 0 and 0 for all else."""
    tensor = values.tensors[index].tensor()
    has_nan = tensor.is_floating_point() or tensor.is_complex()
    raw = RawTensor.of(torch.full_like(tensor, torch.nan) if has_nan else (tensor == 0).to(tensor.dtype))
    return values._replace(tensors=(*values.tensors[:index], raw, *values.tensors[index + 1 :]))


def changed_inputs(result: Values) -> dict[int, int]:
    """Return the number of the tensor by input that `with_changed` added to a reference's result."""
    (key, _), *entries = result.tree.get("d") or [(None, None)]
    is_mixed = key == RESULT and all(name.startswith(CHANGED_INPUT[:6]) for name, _ in entries)
    return {int(name.split()[1]): body["t"] for name, body in entries} if is_mixed else {}


def alone(tree: dict[str, Any], made: Values) -> Values:
    """Return a part of a larger value with only its tensors, renumbered."""
    tensors: list[RawTensor] = []
    return Values(_renumbered(tree, made.tensors, tensors), tuple(tensors))


def _renumbered(tree: dict[str, Any], given: Sequence[RawTensor], taken: list[RawTensor]) -> dict[str, Any]:
    """Return the same structure over its own tensors, which are appended to `taken` in order."""
    ((kind, body),) = tree.items()
    if kind == "t":
        taken.append(given[body])
        return {"t": len(taken) - 1}
    if kind in ("l", "p"):
        return {kind: [_renumbered(item, given, taken) for item in body]}
    if kind == "d":
        return {"d": [[key, _renumbered(item, given, taken)] for key, item in body]}
    return tree


_libc = ctypes.CDLL(None, use_errno=True)
SHOWN = 4
CHUNK_BYTES = 2**30
"""The kernel copies at most 2 GiB less a page per call."""
MOST_ELEMENTS = 2**48
"""Above any real size, stride or extent, and far below an overflow in torch."""


class _Segment(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class MemoryReadError(Exception):
    """A child's description cannot be read, for the reason in the text, which is one safe line."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


class TensorClaim(BaseModel):
    """A child's claim of a tensor. Its form is checked here, its truth by reading."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int] = Field(max_length=16)
    stride: list[int] = Field(max_length=16)
    """In elements."""

    @classmethod
    def checked(cls, claim: Any) -> Self:
        """Parse a claim. Raises `MemoryReadError` unless it describes a strided tensor of a plain dtype."""
        try:
            found = cls.model_validate(claim)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise MemoryReadError(f"the child described an output in a form that cannot be read: {why}") from None
        require_plain(found.dtype, found.shape, found.stride)
        return found

    @property
    def itemsize(self) -> int:
        return int(getattr(torch, self.dtype).itemsize)

    @property
    def extent(self) -> int:
        """Elements of memory from the first to the last."""
        return 0 if 0 in self.shape else _span(self.shape, self.stride)

    @property
    def bytes(self) -> int:
        """Bytes of the copied memory, or of the result where elements repeat."""
        return max(self.extent, math.prod(self.shape)) * self.itemsize


class HostTensor(TensorClaim):
    address: int = Field(ge=0, lt=2**63)


def read_tensors(pid: int, claims: list[Any], limit_bytes: int) -> tuple[RawTensor, ...]:
    """Read the values at the claimed places, made contiguous.

    Raises `MemoryReadError` for a malformed or unreadable claim, and, before reading, where all together would take
    more than `limit_bytes`.
    """
    places = [HostTensor.checked(claim) for claim in claims]
    if sum(place.bytes for place in places) > limit_bytes:
        shapes = ", ".join(str(place.shape) for place in places[:SHOWN])
        raise MemoryReadError(f"a result of shapes {shapes} spans more than {limit_bytes} bytes")
    return tuple(_read(pid, place) for place in places)


def marked(result: Values, places: Sequence[Any], op: str) -> Values:
    """Mark the tensors of a call's result that share memory with another one of it; an exact one is left.

    `places`: of its tensors, `HostTensor` or `Shown`; further tensors are left. After `backward` the outputs alone are
    marked, its first entry: the gradients behind them may be one tensor.
    """
    if op.startswith("exact"):
        return result
    entries = result.tree.get("d") if op == "backward" else None
    own = _places(entries[0][1]) if entries else range(len(places))
    common: set[int] = set()
    group: list[int] = []
    end = 0
    for at in sorted((at for at in own if places[at].bytes), key=lambda at: int(places[at].address)):
        if places[at].address >= end:
            common |= _overlapping(places, group)
            group = []
        group.append(at)
        end = max(end, places[at].address + places[at].bytes)
    common |= _overlapping(places, group)
    tensors = (raw._replace(is_shared=raw.is_shared or at in common) for at, raw in enumerate(result.tensors))
    return result._replace(tensors=tuple(tensors))


def _overlapping(places: Sequence[Any], group: Sequence[int]) -> set[int]:
    """Return those that have a byte in common with another; views of one buffer may lie between each other."""
    if len(group) < 2:
        return set()
    low, high = places[group[0]].address, max(places[at].address + places[at].bytes for at in group)
    unit = math.gcd(*(number for at in group for number in (places[at].itemsize, places[at].address - low)))
    dtype, found = torch.int16 if len(group) < 2**15 else torch.int32, set[int]()
    owners = torch.zeros((high - low) // unit, dtype=dtype)
    for number, at in enumerate(group, 1):
        mine = _parts_of(places[at], owners, low, unit)
        if int(mine.amax()):
            found |= {at, *(group[other - 1] for other in torch.unique(mine).tolist() if other)}
        mine.fill_(number)
    return found


def _parts_of(place: Any, owners: torch.Tensor, low: int, unit: int) -> torch.Tensor:
    size, axes = place.itemsize // unit, [(n, step) for n, step in zip(place.shape, place.stride, strict=True) if step]
    shape, stride = (*(n for n, _ in axes), size), (*(step * size for _, step in axes), 1)
    return owners.as_strided(shape, stride, (place.address - low) // unit)


def require_plain(dtype: str, shape: list[int], stride: list[int]) -> None:
    """Raise `MemoryReadError` unless this is a strided tensor of a plain dtype and a possible size.

    This precedes any use of torch, which aborts the process for some dtypes (those of quantized tensors).
    """
    if dtype not in PLAIN_DTYPES:
        raise MemoryReadError(f"the child described an output of dtype {one_line(dtype, 40)}; return a plain tensor")
    if len(shape) != len(stride):
        raise MemoryReadError(f"the child described an output of {len(shape)} axes with {len(stride)} strides")
    if not all(0 <= number < MOST_ELEMENTS for number in (*shape, *stride)):
        raise MemoryReadError(f"the child described an output of shape {shape} and stride {stride}")
    if max(_span(shape, stride), math.prod(max(1, size) for size in shape)) > MOST_ELEMENTS:
        raise MemoryReadError(
            f"the child described an output of shape {shape} and stride {stride}, which no memory can hold"
        )


def _span(shape: list[int], stride: list[int]) -> int:
    """Count elements of memory from the first to the last."""
    return 1 + sum((max(1, size) - 1) * step for size, step in zip(shape, stride, strict=True))


def _read(pid: int, place: HostTensor) -> RawTensor:
    shape, extent = tuple(place.shape), place.extent
    if not extent:
        return RawTensor(place.dtype, shape, bytearray())
    dtype = getattr(torch, place.dtype)
    data = read_bytes(pid, place.address, extent * dtype.itemsize)
    try:
        whole = torch.frombuffer(data, dtype=dtype).as_strided(shape, place.stride)
        return RawTensor.laid(whole, data)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # NotImplementedError is a RuntimeError
        raise MemoryReadError(
            f"an output of dtype {place.dtype} and shape {place.shape} cannot be read: {error}"
        ) from None


def read_bytes(pid: int, address: int, length: int) -> bytearray:
    buffer = bytearray(length)
    done = 0
    while done < length:
        step = min(CHUNK_BYTES, length - done)
        local = _Segment(ctypes.addressof(ctypes.c_char.from_buffer(buffer, done)), step)
        remote = _Segment(address + done, step)
        got = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if got <= 0:
            raise _failure(ctypes.get_errno(), pid)
        done += got
    return buffer


SPOILED = 64
"""Elements of a result that are overwritten at a time."""
PRESENT, SWAPPED, OF_FILE, EXCLUSIVE = 1 << 63, 1 << 62, 1 << 61, 1 << 56
"""Bits of an entry of /proc/PID/pagemap, eight bytes a page (Documentation/admin-guide/mm/pagemap.rst of Linux)."""


def spoil(pid: int, claims: list[Any]) -> bool:
    """Overwrite elements of results at random places, so that the next call's result shows what it did not write.

    False where such a page was not the process's own before. Where the kernel describes no pages, which shows once one
    is written, mappings decide. Raises `MemoryReadError` for memory that cannot be written, `OSError` after its end.
    """
    for place in map(HostTensor.checked, claims):
        size = place.itemsize
        axes = list(zip(place.shape, place.stride, strict=True))
        count = SPOILED if place.extent else 0
        places = [place.address + size * sum(_secrets.randrange(n) * step for n, step in axes) for _ in range(count)]
        were_own = are_own_pages(pid, places)
        remote = (_Segment * count)(*(_Segment(address, size) for address in places))
        local = _Segment(ctypes.addressof(_SPOILT), size * count)
        if _libc.process_vm_writev(pid, ctypes.byref(local), 1, remote, count, 0) != size * count and count:
            raise _failure(ctypes.get_errno(), pid)
        if not were_own and (are_own_pages(pid, places) or are_mapped(pid, places)):
            return False
    return True


_secrets = random.SystemRandom()
_SPOILT = ctypes.create_string_buffer(b"\xff" * (16 * SPOILED))


def are_own_pages(pid: int, addresses: Sequence[int]) -> bool:
    """Return whether the process has written the pages at these addresses, and shares them with nobody.

    Other pages can be copies of each other, or are filled by the kernel when the judge reads them.
    """
    try:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
            found = [os.pread(file.fileno(), 8, 8 * page) for page in {at // mmap.PAGESIZE for at in addresses}]
    except OSError:
        return False
    bits = [int.from_bytes(entry, sys.byteorder) for entry in found]
    return all(one & SWAPPED or one & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE for one in bits)


def are_mapped(pid: int, addresses: Sequence[int], fd: int | None = None) -> bool:
    """Return whether one is mapped shared or from a file, or shared from `fd`. Raises `OSError` once it has ended."""
    mapped = [line.split()[:5] for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines()]
    if fd is not None:
        mapped = [one for one in mapped if one[1].endswith(b"s") and int(one[4]) == os.fstat(fd).st_ino]
    ends = [where.split(b"-") for where, how, _, _, inode in mapped if how.endswith(b"s") or inode != b"0"]
    return any(int(low, 16) <= address < int(high, 16) for low, high in ends for address in addresses)


def _failure(number: int, pid: int) -> Exception:
    if number in (errno.EPERM, errno.ENOSYS):
        return MachineError(
            f"this machine does not let a parent read its child's memory ({os.strerror(number)}); "
            "allow process_vm_readv (in a container: --cap-add SYS_PTRACE, or a seccomp profile that permits it)"
        )
    if number == errno.ESRCH:
        return ProcessLookupError(number, f"process {pid} has ended")
    return MemoryReadError(f"the described output lies outside the memory of process {pid} ({os.strerror(number)})")


ALIGNMENT = 64
"""Tensors start at multiples of this many bytes: a cache line, and the widest vector register."""


def placed(
    layout: Sequence[tuple[str, Sequence[int]]], sizes: Sequence[int]
) -> tuple[list[dict[str, Any]], list[int], int]:
    """Place tensors after each other: what a child is told of each, their offsets, and the end."""
    *offsets, end = accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0)
    specs = [{"dtype": one, "shape": [*shape], "offset": at} for (one, shape), at in zip(layout, offsets, strict=True)]
    return specs, offsets, end


class SharedMemory:
    """A shared mapping for a fixed list of tensors, sealed so that a child cannot change its size."""

    def __init__(self, layout: Sequence[RawTensor]) -> None:
        self._sizes = [len(raw.data) for raw in layout]
        self.specs, self._offsets, end = placed([(raw.dtype, raw.shape) for raw in layout], self._sizes)
        self.fd = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, max(end, ALIGNMENT))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        try:
            with open(self.fd, "wb", closefd=False) as file:  # a mapping would fault for each page
                for raw, offset in zip(layout, self._offsets, strict=True):
                    file.seek(offset)
                    file.write(raw.on_host)
            self._memory = mmap.mmap(self.fd, max(end, ALIGNMENT))
        except OSError:
            os.close(self.fd)
            raise

    @property
    def size(self) -> int:
        return sum(self._sizes)

    def write(self, tensors: Iterable[RawTensor]) -> None:
        """Write new values of the layout's sizes."""
        for raw, offset, size in zip(tensors, self._offsets, self._sizes, strict=True):
            if len(raw.data) != size:
                raise ValueError(f"{len(raw.data)} bytes for a place of {size}")
            self._memory[offset : offset + size] = raw.on_host

    def overwrite(self) -> None:
        """Overwrite all values, which then read as NaN, -1 or true."""
        first = ctypes.c_char.from_buffer(self._memory)
        _libc.memset(ctypes.byref(first), 0xFF, ctypes.c_size_t(len(self._memory)))

    def changed(self, tensors: Sequence[RawTensor]) -> list[int]:
        """Return the indices of tensors whose bytes differ from these."""
        places = enumerate(zip(tensors, self._offsets, self._sizes, strict=True))
        return [index for index, (raw, *place) in places if self._differs(raw.on_host, *place)]

    def _differs(self, data: bytearray, offset: int, size: int) -> bool:
        if not size:
            return False
        # Compare in place, since a slice of a mapping would be a copy.
        mine, theirs = ctypes.c_char.from_buffer(self._memory, offset), ctypes.c_char.from_buffer(data)
        return bool(_libc.memcmp(ctypes.byref(mine), ctypes.byref(theirs), ctypes.c_size_t(size)))

    def taken(self, index: int) -> RawTensor:
        """Return a copy of a tensor's present bytes."""
        spec, start, size = self.specs[index], self._offsets[index], self._sizes[index]
        return RawTensor(spec["dtype"], tuple(spec["shape"]), bytearray(self._memory[start : start + size]))

    def close(self) -> None:
        """Free the memory; children that map it keep their own reference until they end."""
        self._memory.close()
        os.close(self.fd)
