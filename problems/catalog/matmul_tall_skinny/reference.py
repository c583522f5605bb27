import torch
import torch.nn as nn

ROWS = 160000
INNER = 64
COLS = 16


class Model(nn.Module):
    """The product of a matrix of very many short rows and a small matrix."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLS)]


def get_init_inputs():
    return []
