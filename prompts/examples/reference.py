import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        return x * self.scale + x.sum(dim=1, keepdim=True)


def get_inputs():
    return [torch.rand(512, 1000)]


def get_init_inputs():
    return [1000]
