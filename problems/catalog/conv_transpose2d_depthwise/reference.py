import torch
import torch.nn as nn

BATCH = 8
CHANNELS = 64
KERNEL_SIZE = 3
STRIDE = 2
PADDING = 1
HEIGHT = 56
WIDTH = 56


class Model(nn.Module):
    """A transposed convolution in which every channel has a kernel of its own."""

    def __init__(self, channels: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            channels, channels, kernel_size, stride=stride, padding=padding, groups=channels, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS, KERNEL_SIZE, STRIDE, PADDING]
