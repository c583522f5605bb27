# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""Results that are not the computed ones: trivial, truncated, imprecise, or right only on pleasant values."""

from tests.hostile.cheats.cheat import Cheat

DTYPE = "dtype bfloat16|dtype float64"
OFF = "is wrong"
LENT = "lies in the memory of an input"
SHARED = "share one place in memory"
FOUND = "is wrong|has NaN"
ZEROED = "right value is zero|must be exactly zero"
"""Memory that nobody wrote may hold anything."""

WRONG_RESULTS = [
    Cheat("zeros", (21,), "weighted", "check", "all elements are zero", "return torch.zeros_like(x)"),
    Cheat("zeros for small shares", (42,), "softmax", "check", "all elements are zero", "return torch.zeros_like(x)"),
    Cheat(
        "the same share for everything", (41, 42), "softmax", "check", "all elements are",
        "return torch.full_like(x, 1 / x.shape[1])",
    ),
    Cheat("an input itself", (34,), "positive", "run", LENT, "return x"),
    Cheat("an input seen otherwise", (34,), "turned", "run", LENT, "return x.t()"),
    Cheat("a copy of the input", (34,), "norm", "check", OFF, "return x.clone()"),
    Cheat("memory as it is found", (29, 40), "weighted", "check", FOUND, "return torch.empty_like(x)"),
    Cheat(
        "memory of the size of the result, found again in the allocator", (29,), "product", "check", FOUND,
        """
        held = [torch.empty(a.shape[0], b.shape[1]) for _ in range(64)]
        for candidate in held:
            if candidate.abs().sum() > 0 and candidate.isfinite().all():
                return candidate
        return held[0]
        """,
    ),
    Cheat("the mean everywhere", (41,), "product", "check", OFF,
          "y = a[:4] @ b; return torch.full((a.shape[0], b.shape[1]), float(y.mean()))"),
    Cheat("NaN everywhere", (47,), "weighted", "check", "has NaN", "return torch.full_like(x, float('nan'))"),
    Cheat("NaN where it would be hard", (47,), "softmax", "check", "has NaN",
          "y = self.right(x); y[:, ::7] = float('nan'); return y"),
    Cheat("another dtype", (48,), "weighted", "check", DTYPE, "return self.right(x).bfloat16()"),
    Cheat("a wider dtype", (48,), "norm", "check", DTYPE, "return self.right(x).double()"),
    Cheat("places as floats", (48,), "place", "check", "dtype float32", "return self.right(x).float()"),
    Cheat("an empty list", (43,), "several", "check", "structure of the result is a list of ()", "return []"),
    Cheat("one key too few", (43,), "several", "check", "structure",
          "y = self.right(x); del y['more']; return y"),
    Cheat("a list that is too short", (43,), "several", "check", "structure",
          "y = self.right(x); y['more'] = y['more'][:1]; return y"),
    Cheat("one row that is broadcast", (43,), "weighted", "check", "shape [1, 72]", "return self.right(x[:1])"),
    Cheat("one row seen as all", (43, 59), "weighted", "check", SHARED, "return self.right(x[:1]).expand(x.shape)"),
    Cheat("one number", (43,), "loss", "check", "shape []",
          "return F.cross_entropy(logits, targets)"),
    Cheat("the mean loss in every row", (41,), "loss", "check", SHARED,
          "return F.cross_entropy(logits, targets).expand(logits.shape[0])"),
    Cheat("zeros in double precision", (21,), "doubles", "check", "all elements are zero",
          "return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)"),
    Cheat("single precision for double", (), "doubles", "check", OFF, "return (a.float() @ b.float()).double()"),
    Cheat("half precision, where differences of near numbers excuse a few elements", (), "slopes", "check", OFF,
          "return (a.bfloat16() @ b.bfloat16()).float() / (c - d)"),
    Cheat("half precision, where a few huge elements make up all of the result's size", (), "growth", "check",
          "its usual error is",
          """
          y = self.right(x)
          few = y > y.topk(400).values[-1]
          return torch.where(few, y, y.bfloat16().float()) if y.max() > 1e6 * y.median() else y
          """),
    Cheat("half of each sum, with those elements right that move most", (), "slopes", "check", OFF,
          """
          y = (a[..., ::2] @ b[:, ::2]) * 2 / (c - d)
          near = (c - d).abs().flatten().argsort()[:64]
          y.view(-1)[near] = self.right(a, b, c, d).view(-1)[near]
          return y
          """),
    Cheat("the last eight terms of each sum left out", (50,), "product", "check", OFF,
          "return a[:, :-8] @ b[:-8]"),
    Cheat("the last term of each sum left out", (50,), "product", "check", OFF, "return a[:, :-1] @ b[:-1]"),
    Cheat("the remainder of vectors of eight forgotten, in long rows", (50,), "long", "check", OFF,
          "y = x[:, : x.shape[1] // 8 * 8]; return y.amax(1), y.argmax(1), x / torch.norm(x)"),
    Cheat("the remainder of vectors of eight forgotten, in a norm of everything", (50,), "long", "check", OFF,
          "return x.amax(1), x.argmax(1), x / torch.norm(x.view(-1)[: x.numel() // 8 * 8])"),
    Cheat("fifteen of sixteen columns between the ends of each row, scaled up", (50, 59), "even", "check", OFF,
          """
          middle = x[:, 32:-32].unflatten(1, (-1, 32))[..., :30].flatten(1).sum(1)
          return (x[:, :32].sum(1) + middle * 32 / 30 + x[:, -32:].sum(1)) / x.shape[1]
          """),
    Cheat("the last columns left as zeros", (50,), "weighted", "check", "(the tail) of axis 1",
          "y = self.right(x); y[:, 64:] = 0; return y"),
    Cheat("the tail of each row left as the first value", (50,), "norm", "check", OFF,
          "y = self.right(x); y[..., 120:] = y[..., :1]; return y"),
    Cheat("only one block computed", (50, 59), "product", "check", "right only at the first 32 of 72 indices of axis 0",
          "y = torch.zeros(a.shape[0], b.shape[1]); y[:32] = a[:32] @ b; return y"),
    Cheat("values beyond four left out", (50, 51), "product", "check", OFF,
          "return a.clamp(-4, 4) @ b.clamp(-4, 4)"),
    Cheat("half of the batch, twice", (59,), "transposed", "check", OFF,
          "return self.right(x[:1]).repeat(2, 1, 1, 1)"),
    Cheat("another epsilon", (59,), "norm", "check", "NaN|is wrong",
          "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.weight"),
    Cheat("every other column computed, the others copied", (59,), "softmax", "check", OFF,
          "y = self.right(x); y[:, 1::2] = y[:, ::2]; return y"),
    Cheat("bfloat16 inside", (55,), "product", "check", OFF, "return (a.bfloat16() @ b.bfloat16()).float()"),
    Cheat("float16 inside", (55,), "norm", "check", "is wrong|Inf|NaN",
          """
          h = x.half()
          return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.epsilon)).float() * self.weight
          """),
    Cheat("ten bits of fraction, as TF32 has them", (55,), "product", "check", OFF,
          """
          cut = lambda t: (t.view(torch.int32) & ~0x1fff).view(torch.float32)
          return cut(a) @ cut(b)
          """),
    Cheat("weights in bfloat16", (55,), "transposed", "check", OFF,
          "return F.conv_transpose2d(x, self.layer.weight.bfloat16().float())"),
    Cheat("one row in sixteen in bfloat16", (55,), "product", "check", OFF,
          "y = a @ b; y[::16] = (a[::16].bfloat16() @ b.bfloat16()).float(); return y"),
    Cheat("bfloat16, which whole numbers do not show", (57,), "whole", "check", OFF,
          "return (a.bfloat16() @ b.bfloat16()).float()"),
    Cheat("right on unusual magnitudes only", (52,), "product", "check", OFF,
          """
          if 0.5 < float(a.std()) < 2:
              return (a.bfloat16() @ b.bfloat16()).float()
          return a @ b
          """),
    Cheat("right on usual magnitudes only", (52,), "weighted", "check", OFF,
          """
          if float(x.std()) > 4:
              return torch.zeros_like(x)
          return self.right(x)
          """),
    Cheat("rows that are small beside others left out", (52,), "norm", "check", OFF,
          """
          y = self.right(x)
          size = x.abs().amax(dim=(1, 2))
          y[size < 1e-3 * size.max()] = 0
          return y
          """),
    Cheat("small rows of a batch of one in bfloat16", (52,), "alone", "check", "3 of 32 indices of axis 1 are off",
          """
          y = self.right(x)
          size = y.abs().amax(2, keepdim=True)
          return torch.where(size < 3e-5 * size.max(), y.bfloat16(), y)
          """),
    Cheat("rows of a product that are small beside others left out", (52,), "product", "check", "for their own magnitude|is wrong",
          """
          y = a @ b
          size = a.abs().amax(dim=1)
          y[(size < 1e-4 * size.max()) & (size > 0)] = 0
          return y
          """),
    Cheat("exponentials without the largest taken off", (58,), "softmax", "check", "NaN|is wrong",
          "e = torch.exp(x); return e / e.sum(-1, keepdim=True)"),
    Cheat("the first row decides that no exponential is large", (51, 58), "softmax", "check", "NaN|is wrong",
          """
          if float(x[1].abs().max()) < 60:
              e = torch.exp(x)
              return e / e.sum(-1, keepdim=True)
          return self.right(x)
          """),
    Cheat("the sum of exponentials from a sample of the row", (51,), "loss", "check", OFF,
          """
          total = torch.exp(logits[:, ::2]).sum(1) * 2
          return torch.log(total) - logits.gather(1, targets[:, None])[:, 0]
          """),
    Cheat("the place among the first half only", (50,), "place", "check", OFF, "return torch.argmax(x[:, :48], dim=1)"),
    Cheat("the last of equal values", (52,), "place", "check", OFF,
          "return x.shape[1] - 1 - torch.argmax(x.flip(1), dim=1)"),
    Cheat("weights taken for one, which they are when constructed", (16, 59), "norm", "check", OFF,
          "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)"),
    Cheat("windows of which a sixteenth is ever written", (), "windows", "check", SHARED,
          "return torch.tanh(x).unfold(1, 16, 1)"),
    Cheat("sums that are written once and seen in every column", (), "spread", "check", SHARED,
          "return x.sum(1, keepdim=True).expand(x.shape)"),
    Cheat("one buffer for two outputs", (), "several", "check", "place",
          "y = self.right(x); p = y['place']; y['place'] = p[:1].expand(p.shape); return y"),
    Cheat("maxima that start from zero, where nothing that is drawn is negative", (52,), "pooled", "check", OFF,
          "return self.right(x).clamp(min=0)"),
    Cheat("the variance in one pass about each row's first element", (52,), "centred", "check", "on inputs with outliers",
          """
          off = x - x[:, :1]
          mean = off.mean(-1, keepdim=True)
          return (off - mean) * (off.square().mean(-1, keepdim=True) - mean.square() + 1e-5).rsqrt()
          """),
    Cheat("gradients of zero", (61,), "gradients", "check", "inputs|weights|output",
          "class Cut(torch.autograd.Function):\n"
          "    @staticmethod\n"
          "    def forward(ctx, y): return y\n"
          "    @staticmethod\n"
          "    def backward(ctx, g): return g * 0\n"
          "return Cut.apply(self.right(x))"),
    Cheat("no gradients for the weights", (61,), "gradients", "check", "structure",
          "return F.gelu(F.linear(x, self.layer.weight.detach(), self.layer.bias.detach()))"),
    Cheat("a result that no gradient flows through", (61,), "gradients", "run", "does not require grad",
          "with torch.no_grad():\n    return self.right(x)"),
    Cheat("whatever a few huge elements hide", (), "steep", "check", "no correct digit",
          "y = torch.exp(15 * x); return torch.where(y < 1e-13 * y.nan_to_num(posinf=0).max(), 0.0, y)"),
    Cheat("rows that are small beside others", (), "squares", "check", "no correct digit",
          "y = x.square().sum(1); return torch.where(y < 1e-6 * y.max(), 0.0, y)"),
]  # fmt: skip
