import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 1024
FEATURES = 256
HIDDEN = 1024


class Model(nn.Module):
    """Layer norm, a linear layer that widens, GELU, a linear layer that narrows, and the residual."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)
        self.widen = nn.Linear(features, hidden)
        self.narrow = nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


def get_inputs():
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, HIDDEN]
