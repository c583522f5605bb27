import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
// out[r][c] = x[r][c] * scale[c] + sum of row r. A row stays in cache between its two passes.
torch::Tensor scale_add_row_sum(torch::Tensor x, torch::Tensor scale) {
    TORCH_CHECK(x.dim() == 2 && x.scalar_type() == torch::kFloat && scale.numel() == x.size(1), "unexpected input");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int64_t rows = x.size(0), columns = x.size(1);
    const float* __restrict in_data = x.data_ptr<float>();
    const float* __restrict scale_data = scale.data_ptr<float>();
    float* __restrict out_data = out.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = in_data + r * columns;
        float* row_out = out_data + r * columns;
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < columns; ++c) sum += row[c];
        #pragma omp simd
        for (int64_t c = 0; c < columns; ++c) row_out[c] = row[c] * scale_data[c] + sum;
    }
    return out;
}
"""

extension = load_inline(
    name="scale_add_row_sum",
    cpp_sources=[SOURCE],
    functions=["scale_add_row_sum"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        return extension.scale_add_row_sum(x, self.scale.detach())
