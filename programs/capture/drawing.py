"""Values like those that were seen, as an expression: what `get_inputs` and a constructor of a problem draw with."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch

from kernelwright.programs.record.seen import TensorSeen, ValuesSeen

UNKNOWN = ValuesSeen(drawing="normal", deviation=1.0)
WOBBLE = 0.1
"""How far weights are drawn from a constant such as a norm's ones, so that no kernel can leave them out."""


def drawn(seen: TensorSeen, shape: str, is_weight: bool = False) -> str:
    """The expression for one tensor; `shape` is the text of its axes, such as `8, 128`."""
    values = seen.values or UNKNOWN
    dtype = getattr(torch, seen.dtype)
    if not dtype.is_floating_point:
        return _whole(values, shape, seen.dtype)
    if values.drawing in ("causal", "share"):
        return _cast(_mask(values, shape), seen.dtype)
    if values.drawing == "constant" and is_weight:
        values = values.model_copy(update={"drawing": "normal", "deviation": WOBBLE * max(abs(values.low), 1.0)})
    return _cast(_floating(values, shape), seen.dtype)


def _floating(values: ValuesSeen, shape: str) -> str:
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
    return _moved(f"torch.randn({shape or '()'})", values.deviation, values.mean)


def _moved(text: str, scale: float, offset: float) -> str:
    text = text if _short(scale) == "1.0" else f"{text} * {_short(scale)}"
    if abs(offset) < 0.01 * abs(scale):
        return text
    return f"{text} {'-' if offset < 0 else '+'} {_short(abs(offset))}"


def _mask(values: ValuesSeen, shape: str) -> str:
    low = '-float("inf")' if values.infinite else _short(values.low)
    high = _short(values.high)
    if values.drawing == "causal":
        return f"torch.full(({shape},), {high}).masked_fill(torch.ones({shape}).triu(1).bool(), {low})"
    # The first of each row stays, so that no row is masked as a whole.
    hidden = f"(torch.rand({shape}) >= {_short(values.share)}).index_fill(-1, torch.tensor([0]), False)"
    return f"torch.full(({shape},), {high}).masked_fill({hidden}, {low})"


def _whole(values: ValuesSeen, shape: str, dtype: str) -> str:
    last = shape.rpartition(",")[2].strip()
    if dtype == "bool" and values.drawing in ("causal", "share"):
        if values.drawing == "causal":
            return f"torch.ones({shape}).tril().bool()"
        return f"torch.rand({shape}) < {_short(values.share)}"
    if values.drawing == "constant":
        value = bool(values.low) if dtype == "bool" else int(values.low)
        return f"torch.full(({shape}{',' if shape else ''}), {value}, dtype=torch.{dtype})"
    if values.drawing == "counting":
        return f"torch.arange({last}, dtype=torch.{dtype}).repeat({_ones(shape)})"
    size = f"({shape}{',' if shape else ''})"
    return f"torch.randint({int(values.low)}, {int(values.high) + 1}, {size}, dtype=torch.{dtype})"


def _ones(shape: str) -> str:
    """The repeats that fill a shape with its last axis."""
    return ", ".join([*shape.split(", ")[:-1], "1"])


def _cast(text: str, dtype: str) -> str:
    if dtype == "float32":
        return text
    inner = text if text.startswith("torch.") and text.endswith(")") and " " not in text else f"({text})"
    return f"{inner}.to(torch.{dtype})"


def _short(value: float) -> str:
    """Three digits are enough for a likeness; what is large and whole stays as it is."""
    if value and math.isfinite(value) and abs(value) > 1e30:
        return repr(value)
    return repr(float(f"{value:.3g}"))


def draw(tensors: Sequence[TensorSeen], device: str) -> list[torch.Tensor]:
    """Tensors like those seen, of their own strides, under torch's generator as it stands."""
    return [_laid_out(_evaluated(seen), seen).to(device) for seen in tensors]


def _evaluated(seen: TensorSeen) -> torch.Tensor:
    made = eval(drawn(seen, ", ".join(map(str, seen.shape))), {"torch": torch, "float": float})
    assert isinstance(made, torch.Tensor), "the expressions above make tensors"
    return made


def _laid_out(made: torch.Tensor, seen: TensorSeen) -> torch.Tensor:
    """With the strides that were seen, where no two elements share their place."""
    if made.stride() == seen.stride or 0 in seen.stride:
        return made
    return torch.empty_strided(seen.shape, seen.stride, dtype=made.dtype).copy_(made)
