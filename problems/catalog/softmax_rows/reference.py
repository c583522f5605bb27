import torch
import torch.nn as nn

ROWS = 3700
COLS = 2048


class Model(nn.Module):
    """Softmax over the last dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [3 * torch.randn(ROWS, COLS)]  # spread out, so that a row has a few large shares


def get_init_inputs():
    return []
