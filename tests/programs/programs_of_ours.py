"""Small models that the tests capture, each with something that a cut has to mind."""

import torch
from torch import nn
from torch.nn import functional as F


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
