import torch
import torch.nn as nn

BATCH = 8
CHANNELS = 64
KERNEL_SIZE = 3
STRIDE = 2
PADDING = 1
HEIGHT = 112
WIDTH = 112


class Model(nn.Module):
    """Max pooling with overlapping windows."""

    def __init__(self, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [KERNEL_SIZE, STRIDE, PADDING]
