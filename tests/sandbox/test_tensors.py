import ctypes
import mmap
import os
import subprocess
import sys

import pytest
import torch

from kernelwright.sandbox.tensors import PLAIN_DTYPES, MemoryReadError, read_tensors, spoil
from kernelwright_child import wire

LIMIT = 2**20


def read(tensor, **lie):
    """The tensor as the judge reads it from a process, here its own, with a claim that may be wrong."""
    return read_tensors(os.getpid(), [wire.describe(tensor) | lie], LIMIT)[0]


@pytest.mark.parametrize("dtype", sorted(PLAIN_DTYPES))
@pytest.mark.parametrize("stride", [[3, 1], [1, 2], [0, 1]], ids=["in order", "transposed", "repeated"])
def test_every_plain_dtype_can_be_read_widened_and_compared(dtype, stride):
    bytes_of = torch.randint(0, 2, (6 * getattr(torch, dtype).itemsize,), dtype=torch.uint8)
    tensor = bytes_of.view(getattr(torch, dtype)).as_strided((2, 3), stride)
    found = read(tensor).tensor()
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    assert torch.equal(found.to(wide).nan_to_num(), tensor.to(wide).nan_to_num())
    assert bool(((found == tensor) | found.to(wide).isnan()).all())


def test_elements_of_a_result_are_overwritten_and_what_lies_between_them_is_not():
    whole = torch.zeros(200, 3)
    spoil(os.getpid(), [wire.describe(whole[:, :2]), wire.describe(torch.empty(0, 4))])
    assert 20 < int(whole[:, :2].isnan().sum()) <= 64 and not whole[:, 2].any()


def test_a_result_that_cannot_be_written_is_told():
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    with pytest.raises(MemoryReadError):
        spoil(os.getpid(), [wire.describe(torch.frombuffer(page, dtype=torch.float32))])


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_a_result_in_shared_memory_or_in_pages_that_nobody_wrote_is_found(flags):
    mapped = torch.frombuffer(mmap.mmap(-1, 8192, flags=flags | mmap.MAP_ANONYMOUS), dtype=torch.float32)
    mapped[:1024] = 1
    small = torch.ones(9)
    assert spoil(os.getpid(), [wire.describe(small), wire.describe(mapped[:1024])]) is (flags == mmap.MAP_PRIVATE)
    assert not spoil(os.getpid(), [wire.describe(mapped[1024:])])


def test_a_result_in_the_pages_of_a_file_is_found_and_one_in_written_data_of_a_library_is_not(tmp_path):
    (tmp_path / "pages").write_bytes(bytes(8192))
    with (tmp_path / "pages").open("r+b") as file:
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 8192, flags=mmap.MAP_PRIVATE), dtype=torch.float32)
    assert not spoil(os.getpid(), [wire.describe(mapped)])
    (tmp_path / "own.c").write_text("float numbers[2048] = {1};\n")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "own.so", tmp_path / "own.c"], check=True)
    numbers = (ctypes.c_float * 2048).in_dll(ctypes.CDLL(str(tmp_path / "own.so")), "numbers")
    result = torch.frombuffer(numbers, dtype=torch.float32).fill_(2)
    assert spoil(os.getpid(), [wire.describe(result)])


SIX = torch.arange(6.0)
SHARING = {
    "a row seen as several": (SIX.expand(3, 6), True),
    "windows that overlap": (SIX.unfold(0, 3, 1), True),
    "windows side by side": (SIX.unfold(0, 3, 3), False),
    "a transposed matrix": (SIX.view(2, 3).T, False),
    "a part of a matrix": (SIX.view(2, 3)[:, 1:], False),
    "one element on an axis of one": (SIX[:1].expand(1, 1), False),
    "nothing, seen as several": (SIX[:0].expand(3, 0), False),
    "axes that pass each other by": (torch.arange(8.0).as_strided((3, 2), (2, 3)), False),
    "axes that meet": (torch.arange(11.0).as_strided((4, 2), (2, 4)), True),
}


@pytest.mark.parametrize("name", SHARING)
def test_elements_that_share_a_place_are_noticed(name):
    tensor, shares = SHARING[name]
    found = read(tensor)
    assert found.is_shared == shares
    assert torch.equal(found.tensor(), tensor)


ALL = {str(found).removeprefix("torch.") for found in vars(torch).values() if isinstance(found, torch.dtype)}
OTHERS = sorted(ALL - PLAIN_DTYPES)


@pytest.mark.parametrize("dtype", [*OTHERS, "float", "nn", "", "\ud800\x1b[2J" * 1000])
def test_a_claim_of_another_dtype_is_refused_before_anything_is_read(dtype):
    with pytest.raises(MemoryReadError, match="output of dtype"):
        read(torch.ones(4, 4), dtype=dtype, address=0)


PLACES = {
    "a stride beyond a machine word": {"stride": [2**70, 1]},
    "a stride beyond a machine word that is never taken": {"shape": [1, 4], "stride": [2**70, 1]},
    "a size beyond a machine word": {"shape": [2**80, 4]},
    "a size beyond a machine word of nothing": {"shape": [0, 2**80]},
    "sizes whose product is beyond it, of nothing": {"shape": [0, 2**40, 2**40], "stride": [1, 1, 1]},
    "an extent beyond it": {"shape": [2**40, 4], "stride": [2**40, 1]},
    "a negative stride": {"stride": [-4, 1]},
    "a negative size": {"shape": [-1, 4]},
    "fewer strides than axes": {"stride": [1]},
}


@pytest.mark.parametrize("name", PLACES)
def test_a_claim_of_a_place_that_can_not_be_is_refused_in_a_sentence(name):
    with pytest.raises(MemoryReadError, match="described an output") as raised:
        read(torch.ones(4, 4), **PLACES[name])
    assert len(str(raised.value)) < 300


def test_a_claim_of_more_than_the_limit_is_refused():
    with pytest.raises(MemoryReadError, match="spans more than"):
        read(torch.ones(4, 4), shape=[2**30, 2**10], stride=[0, 0])


def test_a_process_that_has_ended_is_told_from_one_that_lies():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        read_tensors(ended.pid, [wire.describe(torch.ones(3))], LIMIT)


@pytest.mark.parametrize("kind", ["quantized", "nested", "sparse", "mkldnn"])
def test_a_tensor_whose_bytes_are_not_its_values_is_refused_where_it_is(kind):
    plain = torch.ones(4, 4)
    other = {
        "quantized": lambda: torch.quantize_per_tensor(plain, 0.1, 0, torch.quint8),
        "nested": lambda: torch.nested.nested_tensor([plain[0], plain[1, :2]]),
        "sparse": plain.to_sparse,
        "mkldnn": plain.to_mkldnn,
    }[kind]()
    with pytest.raises(wire.WireError, match="not a plain tensor"):
        wire.describe(other)


LAZY = {
    "a negation": torch._neg_view,
    "a conjugation": lambda x: torch.complex(x, x + 1).conj(),
    "a part of a conjugate": lambda x: torch.complex(x, x + 1).conj().imag,
    "a part of a negated conjugate": lambda x: torch._neg_view(torch.complex(x, x + 1)).conj().real,
    "one with a gradient": lambda x: torch._neg_view(x * torch.ones(1, requires_grad=True)),
}


@pytest.mark.parametrize("name", LAZY)
def test_what_torch_has_only_noted_is_carried_out_before_a_result_is_read(name):
    tensor = LAZY[name](torch.arange(12.0).view(3, 4))
    assert torch.equal(read(tensor).tensor(), tensor.detach().resolve_conj().resolve_neg())


def test_what_was_carried_out_lives_until_the_next_question():
    parent, child = wire.socket.socketpair(wire.socket.AF_UNIX, wire.socket.SOCK_SEQPACKET)
    with parent, child:
        told = wire.describe(torch._neg_view(torch.full((2**18,), 3.0)))
        torch.zeros(2**18)  # would take the memory, were it free
        assert ctypes.c_float.from_address(told["address"]).value == -3.0
        wire.send(parent, {})
        wire.receive(child)
        assert not wire._resolved
