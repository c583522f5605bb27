import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 12000
CLASSES = 1000


class Model(nn.Module):
    """The negative log of each row's softmax at its target, not averaged, so that every row is seen."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, reduction="none")


def get_inputs():
    return [2 * torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
