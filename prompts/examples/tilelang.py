import tilelang
import tilelang.language as T
import torch
from torch import nn


# One block a row: out[r][c] = x[r][c] * scale[c] + sum of row r. Fragments are powers of two wide; what lies outside of
# `x` is read as 0.
@tilelang.jit(out_idx=[-1])
def scale_add_row_sum(columns, width, threads=256):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(
        x: T.Tensor((rows, columns), "float32"),
        scale: T.Tensor((columns,), "float32"),
        out: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows, threads=threads) as row:
            values = T.alloc_fragment((1, width), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(x[row, 0], values)
            T.reduce_sum(values, total, dim=1)
            for r, c in T.Parallel(1, width):
                if c < columns:
                    out[row, c] = values[r, c] * scale[c] + total[r]

    return main


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))
        self.run = scale_add_row_sum(columns, max(256, 1 << (columns - 1).bit_length()))

    def forward(self, x):
        return self.run(x.contiguous(), self.scale.detach())
