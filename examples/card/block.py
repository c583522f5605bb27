"""Transformer blocks, pre-norm as in a GPT: inference in bfloat16, or a training step in float32.

    python examples/card/block.py infer|train [small]

Random weights. Inference is what a server of embeddings does: one question of 64 tokens at a time through twelve
blocks of width 1024 (a BERT-large is twice that). At that size nothing is bound by arithmetic: the weights of a block
are read in 8 microseconds, and an operator takes longer to be launched than to run. With thousands of tokens at once
products take nearly all of the time, libraries do them as well as the card can, and no kernel makes the whole 1.3 times
as fast as torch.compile does. A training step takes 8 sequences of 128 tokens through two blocks.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.between, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def main(mode: str, small: bool) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, length, depth = (1, 64, 12) if mode == "infer" else (8, 128, 2)
    width, heads, depth = (256, 4, 2) if small else (1024, 16, depth)
    model = nn.Sequential(*(Block(width, heads) for _ in range(depth))).to(device)
    x = torch.randn(batch, length, width, device=device)
    if mode == "infer":
        model, x = model.bfloat16().eval(), x.bfloat16()
        with torch.no_grad():
            for _ in range(5):
                model(x)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], "small" in sys.argv)
