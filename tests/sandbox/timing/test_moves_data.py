import pytest
import torch

from kernelwright.sandbox import gpu_timing
from kernelwright.sandbox.gpu_timing import is_among, moves_data
from tests.support.tensors import listed

PROGRAMS = {
    "rolled": (lambda x: [x.roll(3, 0)], True),
    "every other row": (lambda x: [x[::2].contiguous()], True),
    "a moved result beside a computed one": (lambda x: [x.exp(), x.flip(0)], True),
    "a result that is moved in half": (lambda x: [torch.cat([x.exp(), x])], True),
    "padded with zeros": (lambda x: [torch.nn.functional.pad(x, (0, 4))], True),
    "a maximum with zero": (lambda x: [x.relu()], False),
    "computed": (lambda x: [x.exp()], False),
    "nothing but zeros": (lambda x: [torch.zeros_like(x)], False),
    "no elements": (lambda x: [x[:0]], False),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moved_data_is_told_from_computed(name, dtype):
    program, moved = PROGRAMS[name]
    inputs = [torch.randn(64, 64, dtype=dtype) for _ in range(4)]

    assert moves_data([listed(x) for x in inputs], [listed(*program(x)) for x in inputs]) is moved


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_a_sample_is_looked_up_part_by_part(monkeypatch, dtype):
    monkeypatch.setattr(gpu_timing, "PART", 100)
    sample, words = torch.randint(200, (50,)).to(dtype), torch.randint(90, (1001,)).to(dtype)
    assert torch.equal(is_among(sample, words), torch.isin(sample, words))
    assert not is_among(sample, words[:0]).any()
