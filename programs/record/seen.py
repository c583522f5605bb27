"""Tensors as the calls of a program met them: their layout, and what their values are like."""

from typing import Literal

from pydantic import Field

from kernelwright.problems.record.base import Record

Drawing = Literal["normal", "uniform", "rectified", "constant", "integers", "counting", "causal", "share"]
"""How values like those seen are drawn.

`rectified`: none below zero, and many zeros. `counting`: 0, 1, 2, ... along the last axis. `causal`: `low` above the
diagonal of the last two axes and `high` elsewhere. `share`: `high` with the probability `share`, else `low`.
"""


class ValuesSeen(Record):
    """What the finite values of a tensor are like; a draw resembles them, and no value itself is kept."""

    drawing: Drawing
    low: float = 0.0
    """The least; for a mask, what stands for "not this one" (as large as it is finite where that is minus infinity)."""
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    zeros: float = 0.0
    """The share of zeros."""
    share: float = 0.0
    """Of `share`: how many are `high`."""
    infinite: bool = False
    """Of masks: `low` stands for minus infinity."""


class TensorSeen(Record):
    """One tensor that went into a call, or came out of it."""

    shape: tuple[int, ...]
    dtype: str
    """Without `torch.`, such as `float32`."""
    stride: tuple[int, ...]
    """In elements."""
    device: str = "cpu"
    requires_grad: bool = False
    values: ValuesSeen | None = None
    """None where nobody looked: at outputs, and at what has no elements."""

    @property
    def words(self) -> str:
        """`8x128x64 float32`."""
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class ModuleSeen(Record):
    """One module of a program at one kind of inputs, and the time that went there."""

    name: str
    """Its qualified name within its root; empty for the root itself."""
    root: str
    """Which of the program's outermost modules: its class's name, with a number behind from the second one on."""
    class_name: str
    """As `torchvision.models.resnet.BasicBlock`."""
    inputs: tuple[TensorSeen, ...] = ()
    training: bool = False
    calls: int = Field(ge=1)
    forward_ms: float = Field(ge=0)
    """Of all calls that were seen, with what is called from there."""
    backward_ms: float = Field(default=0.0, ge=0)
    operators: int = Field(default=0, ge=0)
    """Calls of torch's operators from Python in one call, its submodules' among them."""
