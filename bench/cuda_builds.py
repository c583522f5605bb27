"""First builds of unmodified CUDA answers on a device's machine, nothing built before: ours beside the stock way.

One answer is right; the binding of the other names a function that is not declared, and the third's kernel does not
compile. Each begins with an empty cache, so what the light header needs is made beside it. `KERNELWRIGHT_BENCH=right`
picks. A second line for each says what it takes once the light header is there.
"""

from typing import NamedTuple

from bench.builds import Built, build, build_stock, empty_cache
from bench.chosen import chosen
from kernelwright.sandbox.verdict.settings import Settings

ANSWER = '''
import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void leaky(const float* a, float* b, int64_t n) {
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (i < n) b[i] = a[i] > 0.0f ? a[i] : 0.01f * a[i];
}
torch::Tensor leaky_forward(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "on the device");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.numel();
    leaky<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
module = load_inline("answer", "torch::Tensor leaky_forward(torch::Tensor x);", cuda_sources=CUDA,
                     functions=["leaky_forward"], extra_cuda_cflags=["-O3"], verbose=False)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.leaky_forward(x)
'''
ANSWERS = {
    "right": ANSWER,
    "binding": ANSWER.replace('functions=["leaky_forward"]', 'functions=["leaky_backward"]'),
    "kernel": ANSWER.replace("b[i] = a[i] >", "b[i] = leek[i] >"),
}
MOST_S = {"right": 12.0, "binding": 8.0, "kernel": 8.0}


class First(NamedTuple):
    """One answer."""

    stock_s: float
    ours: Built
    again_s: float
    """Ours, built anew with the light header there."""

    def told(self, name: str) -> str:
        """As a line."""
        said = "; ".join((*self.ours.ways, self.ours.refused))
        return (
            f"  {name:<8} stock {self.stock_s:5.1f} s   ours, first {self.ours.seconds:5.1f} s (promised: "
            f"{MOST_S[name]:.0f}), then {self.again_s:5.1f} s   "
            f"light header beside: {self.ours.making_s:.1f} s   {said}"
        )


class Firsts(NamedTuple):
    """All of them."""

    found: dict[str, First]

    @property
    def holds(self) -> bool:
        """Whether each was quick enough, and refused exactly where it is wrong."""
        return all(
            first.ours.seconds <= MOST_S[name] and bool(first.ours.refused) is (name != "right")
            for name, first in self.found.items()
        )

    def __str__(self) -> str:
        return "\n".join(first.told(name) for name, first in self.found.items())


def run() -> Firsts:
    """Two to four minutes."""
    found = {}
    for name in chosen(ANSWERS):
        with empty_cache():
            stock_s = build_stock(ANSWERS[name])
            ours = build(ANSWERS[name], Settings(device="cuda"))
            again = build(ANSWERS[name] + "# once more", Settings(device="cuda"))
        found[name] = First(stock_s, ours, again.seconds)
    return Firsts(found)
