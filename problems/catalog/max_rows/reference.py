import torch
import torch.nn as nn

ROWS = 4096
COLS = 2048


class Model(nn.Module):
    """The largest value of every row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.max(x, dim=1).values


def get_inputs():
    level = 3 * torch.randn(ROWS, 1)  # without it every maximum would be close to the same value
    return [level + torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
