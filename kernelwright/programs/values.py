"""Values of tensors: which of the ways to draw resembles those that were seen, and the expressions that draw."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch

from kernelwright.programs.record import TensorSeen, ValuesSeen

MANY_ZEROS = 0.05
"""The share of zeros from which values that are never negative are taken for the output of a ReLU."""
MASKED = -1e4
"""A value as low as this, beside one other value, is a mask that is added to scores."""
UNKNOWN = ValuesSeen(drawing="normal", deviation=1.0)
WOBBLE = 0.1
"""Deviation of weights drawn around a constant such as a norm's ones, so that no kernel can leave them out."""


def layout(tensor: torch.Tensor) -> TensorSeen:
    return TensorSeen(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
    )


@torch.no_grad()
def look(tensor: torch.Tensor) -> TensorSeen:
    seen = layout(tensor)
    if not tensor.numel() or tensor.is_complex():
        return seen
    return seen.model_copy(update={"values": values_of(tensor.detach())})


def values_of(tensor: torch.Tensor) -> ValuesSeen:
    """Find the way to draw that gives values like these. NaN is left out."""
    if tensor.dtype == torch.bool:
        return _two_values(tensor.to(torch.uint8), 0.0, 1.0)
    plain = tensor.double() if tensor.is_floating_point() else tensor
    infinite = bool(tensor.is_floating_point() and torch.isneginf(plain).any())
    finite = plain[torch.isfinite(plain)] if tensor.is_floating_point() else plain
    if not finite.numel():
        return ValuesSeen(drawing="constant", infinite=infinite)
    low, high = (float(value) for value in torch.aminmax(finite))
    if infinite or (tensor.is_floating_point() and low <= MASKED and high <= 0):
        lowest = plain.min() if infinite else low
        return _two_values((plain > lowest).to(torch.uint8), low, high).model_copy(update={"infinite": infinite})
    if low == high:
        return ValuesSeen(drawing="constant", low=low, high=high, mean=low)
    if tensor.is_floating_point():
        return _floats_seen(finite, low, high)
    last = tensor.shape[-1] if tensor.dim() else 1
    counting = torch.arange(last, device=tensor.device, dtype=tensor.dtype)
    if low == 0 and high == last - 1 and bool((tensor == counting).all()):
        return ValuesSeen(drawing="counting", low=low, high=high)
    return ValuesSeen(drawing="integers", low=low, high=high)


def _floats_seen(values: torch.Tensor, low: float, high: float) -> ValuesSeen:
    mean, deviation = float(values.mean()), float(values.std())
    zeros = float((values == 0).double().mean())
    seen = ValuesSeen(drawing="normal", low=low, high=high, mean=mean, deviation=deviation, zeros=zeros)
    if low < 0:
        # A uniform distribution ends at 1.73 deviations; a normal one of this many values goes further.
        flat = values.numel() >= 64 and max(high - mean, mean - low) < 2 * deviation
        return seen.model_copy(update={"drawing": "uniform"}) if flat else seen
    return seen.model_copy(update={"drawing": "rectified" if zeros > MANY_ZEROS else "uniform"})


def _two_values(upper: torch.Tensor, low: float, high: float) -> ValuesSeen:
    """Describe a mask, where `upper` says which elements are `high`."""
    share = float(upper.double().mean())
    if share in (0.0, 1.0):
        return ValuesSeen(drawing="constant", low=high if share else low, high=high if share else low)
    is_causal = upper.dim() >= 2 and bool((upper == torch.ones_like(upper).tril()).all())
    return ValuesSeen(drawing="causal" if is_causal else "share", low=low, high=high, share=share)


def drawn(seen: TensorSeen, shape: str, is_weight: bool = False) -> str:
    """Write the expression for one tensor; `shape` is the text of its axes, such as `8, 128`."""
    values = seen.values or UNKNOWN
    dtype = getattr(torch, seen.dtype)
    if not dtype.is_floating_point:
        return _drawn_integers(values, shape, seen.dtype)
    if values.drawing == "constant" and is_weight:
        values = values.model_copy(update={"drawing": "normal", "deviation": WOBBLE * max(abs(values.low), 1.0)})
    text = _drawn_floats(values, shape)
    if seen.dtype == "float32":
        return text
    inner = text if text.startswith("torch.") and text.endswith(")") and " " not in text else f"({text})"
    return f"{inner}.to(torch.{seen.dtype})"


def _drawn_floats(values: ValuesSeen, shape: str) -> str:
    match values.drawing:
        case "constant":
            return f"torch.full(({shape},), {_short(values.low)})" if shape else f"torch.tensor({_short(values.low)})"
        case "uniform":
            return _moved(f"torch.rand({shape or '()'})", values.high - values.low, values.low)
        case "rectified":
            # So that the same share lies below zero, and what is left has the same mean.
            cut = NormalDist().inv_cdf(min(max(values.zeros, 0.01), 0.99))
            scale = values.mean / max(1e-9, NormalDist().pdf(cut) - cut * (1 - values.zeros))
            return f"torch.relu({_moved(f'torch.randn({shape})', scale, -cut * scale)})"
        case "causal" | "share":
            low = '-float("inf")' if values.infinite else _short(values.low)
            hidden = f"torch.ones({shape}).triu(1).bool()"
            if values.drawing == "share":  # the first of each row stays, so that no row is masked as a whole
                hidden = f"(torch.rand({shape}) >= {_short(values.share)}).index_fill(-1, torch.tensor([0]), False)"
            return f"torch.full(({shape},), {_short(values.high)}).masked_fill({hidden}, {low})"
    return _moved(f"torch.randn({shape or '()'})", values.deviation, values.mean)


def _moved(text: str, scale: float, offset: float) -> str:
    text = text if _short(scale) == "1.0" else f"{text} * {_short(scale)}"
    if abs(offset) < 0.01 * abs(scale):
        return text
    return f"{text} {'-' if offset < 0 else '+'} {_short(abs(offset))}"


def _drawn_integers(values: ValuesSeen, shape: str, dtype: str) -> str:
    size = f"({shape}{',' if shape else ''})"
    if dtype == "bool" and values.drawing in ("causal", "share"):
        is_causal = values.drawing == "causal"
        return f"torch.ones({shape}).tril().bool()" if is_causal else f"torch.rand({shape}) < {_short(values.share)}"
    if values.drawing == "constant":
        value = bool(values.low) if dtype == "bool" else int(values.low)
        return f"torch.full({size}, {value}, dtype=torch.{dtype})"
    if values.drawing == "counting":
        *before, last = shape.split(", ")
        return f"torch.arange({last}, dtype=torch.{dtype}).repeat({', '.join([*before, '1'])})"
    return f"torch.randint({int(values.low)}, {int(values.high) + 1}, {size}, dtype=torch.{dtype})"


def _short(value: float) -> str:
    """Round to three digits, which are enough for a likeness; a value above 1e30 stays as it is."""
    if value and math.isfinite(value) and abs(value) > 1e30:
        return repr(value)
    return repr(float(f"{value:.3g}"))


def draw(tensors: Sequence[TensorSeen], device: str) -> list[torch.Tensor]:
    """Draw tensors like those, with the strides that were seen where no two elements share their place."""
    found = []
    for seen in tensors:
        made = eval(drawn(seen, ", ".join(map(str, seen.shape))), {"torch": torch, "float": float})
        assert isinstance(made, torch.Tensor), "the expressions above make tensors"
        if made.stride() != seen.stride and 0 not in seen.stride:
            made = torch.empty_strided(seen.shape, seen.stride, dtype=made.dtype).copy_(made)
        found.append(made.to(device))
    return found
