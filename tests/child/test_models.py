"""The float64 result is one, whatever types a reference names on its way."""

import math

import pytest
import torch
from torch import nn

from kernelwright_child.models import cast_inputs, cast_model, widened, widened_value

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])


@DTYPES
def test_floating_inputs_are_cast_also_in_lists_tuples_and_dictionaries_and_all_others_stay(dtype):
    given = [torch.randn(3), torch.arange(3), torch.tensor([True]), torch.randn(2, dtype=torch.complex64), 7, None]
    found = cast_inputs(given, dtype)
    assert found[0].dtype == getattr(torch, dtype)
    assert all(one is other for one, other in zip(found[1:], given[1:], strict=True))
    (nested,) = cast_inputs([{"a": [torch.randn(2), (torch.randn(1), torch.arange(2))], "b": 1.5}], dtype)
    wanted = getattr(torch, dtype)
    assert nested["a"][0].dtype == wanted and nested["a"][1][0].dtype == wanted
    assert nested["a"][1][1].dtype == torch.int64 and nested["b"] == 1.5


def test_without_a_dtype_nothing_is_touched():
    given, model = [torch.randn(2, dtype=torch.float64)], torch.nn.Linear(2, 2).double()
    cast_model(model, None)
    assert cast_inputs(given, None) is given
    assert model.weight.dtype == torch.float64


@DTYPES
def test_floating_weights_and_buffers_are_cast_and_counters_stay(dtype):
    model = torch.nn.BatchNorm1d(3)
    cast_model(model, dtype)
    assert model.weight.dtype == model.running_mean.dtype == getattr(torch, dtype)
    assert model.num_batches_tracked.dtype == torch.int64


X = torch.rand(100, dtype=torch.float64)
NAMING = {
    "float()": lambda x: x.float() * 3,
    "half()": lambda x: x.half() * 3,
    "to(dtype)": lambda x: x.to(torch.bfloat16) * 3,
    "to(dtype=...)": lambda x: x.to(dtype=torch.float32) * 3,
    "a dtype for a sum": lambda x: torch.sum(x * 3, dtype=torch.float32),
    "a new tensor of a dtype": lambda x: torch.full((100,), 3.0, dtype=torch.float32) * x,
    "a new tensor of no dtype": lambda x: torch.full((100,), 3.0) * x,
    "softmax in a dtype": lambda x: torch.softmax(x, 0, dtype=torch.float32),
}


@pytest.mark.parametrize("name", NAMING)
def test_arithmetic_is_wide(name):
    with widened():
        found = NAMING[name](X)
    assert found.dtype == torch.float64 and torch.zeros(1).dtype == torch.float32


def test_casts_integers_and_bits_are_what_they_were():
    with widened():
        assert torch.equal(X.float().half().bfloat16(), X)
        assert X.to(torch.int64).dtype == torch.int64
        assert torch.zeros(4, dtype=torch.int32).view(torch.float32).dtype == torch.float32


ROWS, WIDTH = 6, 16


class Block(nn.Module):
    """As of a GPT: a lambda that holds the modules themselves."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.ModuleDict({
            "c_fc": nn.Linear(WIDTH, 4 * WIDTH), "act": nn.GELU(), "c_proj": nn.Linear(4 * WIDTH, WIDTH),
        })  # fmt: skip
        m = self.mlp
        self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))

    def forward(self, x):
        return x + self.mlpf(x)


MASK = torch.tril(torch.ones(WIDTH, WIDTH))


class Masked(nn.Module):
    def forward(self, x):
        return torch.softmax((x.unsqueeze(-1) * x.unsqueeze(1)).masked_fill(MASK == 0, -math.inf), -1) @ MASK


class Tabled(nn.Module):
    """Tables in a list, where no module looks for them."""

    def __init__(self):
        super().__init__()
        self.tables = [torch.randn(WIDTH), {"scale": torch.rand(WIDTH) + 1}]

    def forward(self, x):
        return x * self.tables[0] / self.tables[1]["scale"]


class Positioned(nn.Module):
    def forward(self, x):
        angles = torch.arange(WIDTH).float() / torch.arange(1, WIDTH + 1, dtype=torch.float32)
        places = torch.arange(x.shape[0], device=x.device).float()[:, None]
        return x * torch.sin(places * angles) + torch.cos(places * angles).to(x.dtype)


class Rounding(nn.Module):
    """Casts on the way, and a result of a named type."""

    def forward(self, x):
        return torch.softmax(x.to(torch.bfloat16).float() * 3, -1, dtype=torch.float32).type(torch.float32)


class Scratch(nn.Module):
    """Buffers and loose tensors that a call writes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(WIDTH))
        self.last = torch.zeros(WIDTH)

    def forward(self, x):
        self.total += x.sum(0)
        self.last.copy_(x[0])
        self.total[0] = 1
        return self.total * self.last


class Filled(nn.Module):
    """A new tensor that is filled by index, and one that is written by `out`."""

    def forward(self, x):
        y = torch.zeros(x.shape)
        y[:, ::2] = x[:, ::2]
        y[:, 1::2].add_(x[:, 1::2] / 3)
        z = torch.empty_like(x)
        torch.mul(x, y, out=z)
        return y.div_(7) + z


def normed():
    return nn.BatchNorm1d(WIDTH)


class Attending(nn.Module):
    """Attention as torch has it, with a mask that is made in the call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.register_buffer("scale", torch.full((1,), 0.3))

    def forward(self, x):
        mask = torch.triu(torch.full((x.shape[0], x.shape[0]), -math.inf), 1)
        return self.inner(x * self.scale, x, x, attn_mask=mask, need_weights=False)[0]


MODELS = (Block, Masked, Tabled, Positioned, Rounding, Scratch, Filled, normed, Attending)
EVERY = pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)


def made(kind, dtype=torch.float32):
    torch.manual_seed(1)
    return kind().to(dtype)


def exactly(model, *inputs):
    with torch.no_grad(), widened(model) as own:
        return own(model(*map(widened_value, inputs)))


def everything_of(model):
    loose = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *loose]


def drawn():
    return torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(2)) + 0.5


@EVERY
def test_the_result_is_float64_and_near_the_narrow_one(kind):
    x = drawn()
    exact, near = exactly(made(kind), x), made(kind)(x)
    assert exact.dtype == torch.float64
    slack = 1e-2 if kind is Rounding else 1e-5
    torch.testing.assert_close(exact, near.double(), rtol=slack, atol=slack)


@EVERY
def test_the_result_is_exact_to_far_more_than_float32(kind):
    """By a call that nobody has widened: everything is float64 from the outset."""
    x, before = drawn(), torch.get_default_dtype()
    exact, plain = exactly(made(kind), x), made(kind)
    if kind is Rounding:
        want = torch.softmax(x.double() * 3, -1)
    elif kind is Positioned:
        want = by_hand(x.double())
    else:
        try:
            torch.set_default_dtype(torch.float64)
            want = _doubled(plain, kind)(x.double())
        finally:
            torch.set_default_dtype(before)
    torch.testing.assert_close(exact, want, rtol=1e-12, atol=1e-13)


def by_hand(x):
    steps = torch.arange(WIDTH, dtype=torch.float64)
    angles = torch.arange(ROWS, dtype=torch.float64)[:, None] * (steps / (steps + 1))
    return x * angles.sin() + angles.cos()


def _doubled(model, kind):
    model.double()
    if kind is Tabled:
        model.tables = [model.tables[0].double(), {"scale": model.tables[1]["scale"].double()}]
    if kind is Scratch:
        model.last = model.last.double()
    if kind is Masked:
        return lambda x: (
            torch.softmax((x.unsqueeze(-1) * x.unsqueeze(1)).masked_fill(MASK == 0, -math.inf), -1) @ MASK.double()
        )
    return model


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_buffers_and_what_a_call_changes_are_bit_by_bit_what_they_were(kind, dtype):
    model = made(kind, dtype)
    before = [(tensor, tensor.data_ptr(), tensor.detach().clone()) for tensor in everything_of(model)]
    exactly(model, drawn().to(dtype))
    assert [id(tensor) for tensor in everything_of(model)] == [id(tensor) for tensor, _, _ in before]
    for tensor, address, was in before:
        assert tensor.dtype == was.dtype and tensor.data_ptr() == address
        assert torch.equal(tensor, was)


def test_counters_too_are_what_they_were_after_batch_norm_in_training_mode():
    model = made(normed)
    assert model.training
    exactly(model, drawn())
    model(drawn())
    assert int(model.num_batches_tracked) == 1


def test_a_module_that_replaces_its_buffer_has_the_former_one_again():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(WIDTH))
            self.count = torch.zeros(())

        def forward(self, x):
            self.seen = self.seen * 0.5
            self.count = self.count + 1
            return x * self.seen + self.count

    model = made(Replacing)
    once, twice = exactly(model, drawn()), exactly(model, drawn())
    assert torch.equal(once, twice)
    assert model.seen.dtype == torch.float32 and torch.equal(model.seen, torch.ones(WIDTH))
    assert float(model.count) == 0 and model.count.dtype == torch.float32


def test_an_error_in_the_call_leaves_all_as_it_was():
    model = made(Block)
    before = [tensor.detach().clone() for tensor in model.parameters()]
    with pytest.raises(RuntimeError):
        exactly(model, drawn()[:, :3])
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert torch.get_default_dtype() == torch.float32


def test_weights_of_16_bits_are_widened_as_they_are():
    model = made(Block, torch.bfloat16)
    x = drawn().bfloat16()
    wide = made(Block, torch.bfloat16).double()
    torch.testing.assert_close(exactly(model, x), wide(x.double()), rtol=1e-12, atol=1e-13)


def test_weights_that_two_modules_share_stay_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, WIDTH)
            self.head = nn.Linear(WIDTH, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, index):
            return self.head(self.table(index))

    model = made(Tied)
    assert exactly(model, torch.arange(5)).dtype == torch.float64
    assert model.head.weight is model.table.weight and model.head.weight.dtype == torch.float32


def test_views_of_a_parameter_that_modules_hold_are_widened_when_used():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
            self.first = self.weight.detach()[0]

        def forward(self, x):
            return x * self.first + x @ self.weight

    model = made(Viewing)
    want = drawn().double() * model.first.double() + drawn().double() @ model.weight.detach().double()
    torch.testing.assert_close(exactly(model, drawn()), want, rtol=1e-12, atol=1e-13)


def test_what_is_written_by_out_arrives_where_it_is_read():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.scratch = [torch.zeros(ROWS, WIDTH)]

        def forward(self, x):
            torch.mul(x, 3, out=self.scratch[0])
            return x + self.scratch[0]

    torch.testing.assert_close(exactly(made(Writing), drawn()), 4 * drawn().double(), rtol=1e-6, atol=1e-6)


def test_a_model_may_return_what_it_keeps():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.ones(WIDTH))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.total += x.sum(0)
            self.calls += 1
            return {"total": self.total, "first": self.total[:3], "calls": [self.calls]}

    found = exactly(made(Counting), drawn())
    want = 1 + drawn().double().sum(0)
    torch.testing.assert_close(found["total"], want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found["first"], want[:3], rtol=1e-12, atol=1e-13)
    assert int(found["calls"][0]) == 1


def test_recurrent_layers_are_widened_too():
    model = made(lambda: nn.LSTM(WIDTH, 8, 2))
    exact, _ = exactly(model, drawn())
    wide, _ = made(lambda: nn.LSTM(WIDTH, 8, 2)).double()(drawn().double())
    torch.testing.assert_close(exact, wide, rtol=1e-12, atol=1e-13)
    near, _ = model(drawn())
    assert near.dtype == torch.float32
