"""What a tensor is like: its layout, and a few figures of its values from which ones like them can be drawn."""

import torch

from kernelwright.programs.record.seen import TensorSeen, ValuesSeen

MANY_ZEROS = 0.05
"""The share of zeros from which values that are never negative are taken for the output of a ReLU."""
MASKED = -1e4
"""What is as low as this, beside one other value, is a mask that is added to scores."""


def layout(tensor: torch.Tensor) -> TensorSeen:
    """Shape, dtype, strides and device; its values are not looked at."""
    return TensorSeen(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
    )


@torch.no_grad()
def look(tensor: torch.Tensor) -> TensorSeen:
    """The same with its values."""
    seen = layout(tensor)
    if not tensor.numel() or tensor.is_complex():
        return seen
    return seen.model_copy(update={"values": values_of(tensor.detach())})


def values_of(tensor: torch.Tensor) -> ValuesSeen:
    """Which of the ways to draw gives values like these. NaN counts as if it were not there."""
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
        return _floating(finite, low, high)
    return _whole(tensor, low, high)


def _floating(values: torch.Tensor, low: float, high: float) -> ValuesSeen:
    mean, deviation = float(values.mean()), float(values.std())
    zeros = float((values == 0).double().mean())
    seen = ValuesSeen(drawing="normal", low=low, high=high, mean=mean, deviation=deviation, zeros=zeros)
    if low < 0:
        # A uniform distribution ends at 1.73 deviations; a normal one of this many values goes further.
        flat = values.numel() >= 64 and max(high - mean, mean - low) < 2 * deviation
        return seen.model_copy(update={"drawing": "uniform"}) if flat else seen
    return seen.model_copy(update={"drawing": "rectified" if zeros > MANY_ZEROS else "uniform"})


def _whole(tensor: torch.Tensor, low: float, high: float) -> ValuesSeen:
    last = tensor.shape[-1] if tensor.dim() else 1
    counting = torch.arange(last, device=tensor.device, dtype=tensor.dtype)
    if low == 0 and high == last - 1 and bool((tensor == counting).all()):
        return ValuesSeen(drawing="counting", low=low, high=high)
    return ValuesSeen(drawing="integers", low=low, high=high)


def _two_values(upper: torch.Tensor, low: float, high: float) -> ValuesSeen:
    """Of a mask, where `upper` says which elements are `high`."""
    share = float(upper.double().mean())
    if share in (0.0, 1.0):
        return ValuesSeen(drawing="constant", low=high if share else low, high=high if share else low)
    is_causal = upper.dim() >= 2 and bool((upper == torch.ones_like(upper).tril()).all())
    return ValuesSeen(drawing="causal" if is_causal else "share", low=low, high=high, share=share)
