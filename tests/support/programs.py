"""Small models for tests of captures, and a folder with a kernel for two of their gates; nothing is compiled."""

import inspect
import json

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from kernelwright.problems import Problem
from kernelwright.programs.record import (
    CallSite,
    CapturedProgram,
    Chosen,
    ModuleSeen,
    Part,
    PartInput,
    PartSize,
    Split,
    TensorSeen,
    write_record,
)
from tests.support.runs import passed, writing

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
    """A folder as `programs.placing` reads it."""
    part = part_of_gates(**how).model_dump(mode="json")
    part |= {"places": PLACES, "dtype": None}
    (folder / "gate").mkdir(parents=True)
    (folder / "gate" / "candidate.py").write_text(kernel)
    (folder / "gate" / "reference.py").write_text(REFERENCE)
    (folder / "kernels.json").write_text(json.dumps({"parts": [part]}))
    return folder


PLACES = (("Network", "first"), ("Network", "second"))
SCRIPT = """
import sys

import torch
from torch import nn

{classes}

if __name__ == "__main__":
    torch.manual_seed(0)
    model = Network().eval()
    x = torch.randn({rows}, COLUMNS)
    with torch.set_grad_enabled("train" in sys.argv):
        for _ in range(2):
            y = model(x)
            if "train" in sys.argv:
                y.square().mean().backward()
    print("a program may print")
"""


def script(folder, rows=ROWS):
    """A program that calls the network, as a file."""
    classes = f"COLUMNS = {COLUMNS}\n\n" + "\n\n".join(map(inspect.getsource, (Gate, Network)))
    path = folder / "network.py"
    path.write_text(SCRIPT.format(classes=classes, rows=rows))
    return path


def run_over_gates(folder, kernel=KERNEL, verdict=None, **how):
    """A run over the capture of the network, with one attempt for its part."""
    part = part_of_gates(**how)
    problem = Problem(name="gate", title="A gate", family="part", size="cpu", source=REFERENCE)
    with writing(folder, of=problem) as writer:
        writer.attempt(verdict or passed(3.0), source=kernel)
        writer.stop()
    module = ModuleSeen(name="", root="Network", class_name="here.Network", calls=2, forward_ms=2.0)
    capture = CapturedProgram(
        program="network.py", device="Example CPU", threads=2, steps=2, steps_seen=2, program_ms=2.0,
        modules=(module,), parts=(part,),
    )  # fmt: skip
    chosen = Chosen(part="gate", ms=1.0, share=0.5, floor_ms=0.1, gain_ms=0.9, sites=PLACES)
    write_record(folder, capture)
    write_record(folder, Split(program_ms=2.0, chosen=(chosen,)))
    return folder


class Block(nn.Module):
    """One ReLU called twice, in place, and a norm with buffers."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.relu(x + self.conv2(self.relu(self.norm(self.conv(x)))))


class Attending(nn.Module):
    """An attention written out, with a mask, whose core is a run inside `forward`."""

    def __init__(self, width=32):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, *, mask=None):
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = query @ key.transpose(-1, -2) / 5.0
        if mask is not None:
            scores = scores + mask
        return self.out(torch.softmax(scores, -1) @ value)


class ByValue(nn.Module):
    """Decides by what is in a tensor; its child does not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else F.relu(self.inner(x))


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Custom(nn.Module):
    """Gradients of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return _Twice.apply(self.inner(x))


class Table(nn.Module):
    """Whole-number inputs, and a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.register_buffer("order", torch.tensor([3, 1, 2, 0]))

    def forward(self, words):
        return torch.tanh(self.embedding(words)[:, self.order]).sum(-1)
