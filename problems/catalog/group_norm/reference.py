import torch
import torch.nn as nn

BATCH = 28
CHANNELS = 64
GROUPS = 32
HEIGHT = 64
WIDTH = 64


class Model(nn.Module):
    """Group norm, with a weight and a bias for each channel as after some training."""

    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [GROUPS, CHANNELS]
