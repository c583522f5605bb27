import helion
import helion.language as hl
import torch
from torch import nn


# A tile of rows a program, whole rows in registers: out[r][c] = x[r][c] * scale[c] + sum of row r.
@helion.kernel(config=helion.Config(block_sizes=[1], num_warps=4), static_shapes=True)
def scale_add_row_sum(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        values = x[row, :]
        total = torch.sum(values, dim=1, keepdim=True)
        out[row, :] = values * scale[:] + total
    return out


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        return scale_add_row_sum(x.contiguous(), self.scale.detach())
