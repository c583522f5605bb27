"""A model of two gates and a folder with a kernel for them, as a run would leave it; nothing is compiled."""

import json

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.programs.record.parts import CallSite, Part, PartInput, PartSize
from kernelwright.programs.record.seen import TensorSeen

ROWS, COLUMNS = 4, 16
REFERENCE = f"""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand({COLUMNS}))

    def forward(self, x):
        return x * torch.sigmoid(self.gain)


def get_inputs():
    return [torch.randn({ROWS}, {COLUMNS})]


def get_init_inputs():
    return []
"""
KERNEL = REFERENCE.replace("class Model(", "class ModelNew(").replace(
    "x * torch.sigmoid(self.gain)", "x / (1 + torch.exp(-self.gain))"
)
"""The same by other operators, so that it can be told apart by its bits."""


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.gain = nn.Parameter(torch.randn(COLUMNS))

    def forward(self, x):
        return self.inner(x) * torch.sigmoid(self.gain)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Gate()
        self.mix = nn.Linear(COLUMNS, COLUMNS)
        self.second = Gate()

    def forward(self, x):
        return self.second(torch.tanh(self.mix(self.first(x))))


def seen(*shape):
    return TensorSeen(shape=shape, dtype="float32", stride=torch.empty(shape).stride())


def part_of_gates(direction="forward", training=False):
    """The record of both gates as one part."""
    size = PartSize(
        name="cpu",
        inputs=(PartInput(name="x", leaf=0, tensor=seen(ROWS, COLUMNS)),),
        outputs=(seen(ROWS, COLUMNS),),
        call=pytree.treespec_dumps(pytree.tree_structure(((0,), {}))),
        result=pytree.treespec_dumps(pytree.tree_structure(0)),
        result_leaves=(0,),
        sites=tuple(CallSite(root="Network", module=name, calls=1, ms=1.0) for name in ("first", "second")),
    )
    return Part(
        id="gate", title="A gate", kind="module", class_name="here.Gate", state={"gain": "gain"}, training=training,
        direction=direction, operators=2, sizes=(size,),
    )  # fmt: skip


def kernels_folder(folder, kernel=KERNEL, **how):
    """A folder as `programs.apply.placing` reads it."""
    part = part_of_gates(**how).model_dump(mode="json")
    part |= {"places": [["Network", "first"], ["Network", "second"]], "dtype": None}
    (folder / "gate").mkdir(parents=True)
    (folder / "gate" / "candidate.py").write_text(kernel)
    (folder / "gate" / "reference.py").write_text(REFERENCE)
    (folder / "kernels.json").write_text(json.dumps({"parts": [part]}))
    return folder
