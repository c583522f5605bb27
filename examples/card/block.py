"""A transformer block: inference in bfloat16, or a training step in float32, on random weights.

python examples/card/block.py infer|train [small]
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Rotary(nn.Module):
    """Turns pairs of features by their place in the sequence."""

    def __init__(self, width: int, longest: int):
        super().__init__()
        angle = torch.outer(torch.arange(longest).float(), 10000 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.float().chunk(2, -1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat((one * cos - other * sin, one * sin + other * cos), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, longest: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.rotary = Rotary(width // heads, longest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, -1)
        return F.silu(one) * other


class Block(nn.Module):
    def __init__(self, width: int, heads: int, longest: int):
        super().__init__()
        self.before, self.attention = Norm(width), Attention(width, heads, longest)
        self.between, self.up, self.gate = Norm(width), nn.Linear(width, 8 * width, bias=False), Gate()
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(self.gate(self.up(self.between(x))))


def main(mode: str, small: bool) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, length, width, heads = (2, 64, 128, 4) if small else (8, 2048, 1024, 16)
    block = Block(width, heads, length).to(device)
    x = torch.randn(batch, length, width, device=device)
    if mode == "infer":
        block, x = block.bfloat16().eval(), x.bfloat16()
        with torch.no_grad():
            for _ in range(5):
                block(x)
        return
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        block(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], "small" in sys.argv)
