import torch
import torch.nn as nn

ROWS = 4096
COLS = 2048


class Model(nn.Module):
    """The index of the largest value of every row, the first one among equals."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
