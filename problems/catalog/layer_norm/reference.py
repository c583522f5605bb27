import torch
import torch.nn as nn

BATCH = 26
TOKENS = 3136
FEATURES = 96


class Model(nn.Module):
    """Layer norm over the last dimension, with a weight and a bias as after some training."""

    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
