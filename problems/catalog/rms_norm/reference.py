import torch
import torch.nn as nn

BATCH = 48
TOKENS = 128
FEATURES = 1024
EPSILON = 1e-5


class Model(nn.Module):
    """Each row over its root mean square, times a weight for each feature."""

    def __init__(self, features: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(features).uniform_(0.5, 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, EPSILON]
