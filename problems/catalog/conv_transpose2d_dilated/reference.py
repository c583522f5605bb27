import torch
import torch.nn as nn

BATCH = 12
IN_CHANNELS = 32
OUT_CHANNELS = 32
KERNEL_SIZE = 3
PADDING = 2
DILATION = 3
HEIGHT = 64
WIDTH = 64


class Model(nn.Module):
    """A 2-D transposed convolution whose taps lie three pixels apart."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int, dilation: int):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.rand(BATCH, IN_CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS, KERNEL_SIZE, PADDING, DILATION]
