import torch
import triton
import triton.language as tl
from torch import nn


# One program a row: out[r][c] = x[r][c] * scale[c] + sum of row r.
@triton.jit
def scale_add_row_sum_kernel(x_ptr, scale_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row_start = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    partial = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + offsets < columns
        partial += tl.load(x_ptr + row_start + start + offsets, mask=mask, other=0.0)
    row_sum = tl.sum(partial, axis=0)
    for start in range(0, columns, BLOCK):
        mask = start + offsets < columns
        x = tl.load(x_ptr + row_start + start + offsets, mask=mask, other=0.0)
        scale = tl.load(scale_ptr + start + offsets, mask=mask, other=0.0)
        tl.store(out_ptr + row_start + start + offsets, x * scale + row_sum, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, columns = x.shape
        scale_add_row_sum_kernel[(rows,)](x, self.scale, out, columns, BLOCK=256, num_warps=4)
        return out
