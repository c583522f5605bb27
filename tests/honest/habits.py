# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""Right candidates without a compiler: other orders, other memory, other manners."""

from tests.honest.honest import Honest

SERIAL = """
y = torch.empty_like(x)
total = torch.zeros(x.shape[0])
for c in range(x.shape[1]):
    total = total + x[:, c] * self.weight[c] + self.bias[c]
    y[:, c] = total
return y
"""
KAHAN = """
y, total, lost = torch.empty_like(x), torch.zeros(x.shape[0]), torch.zeros(x.shape[0])
for c in range(x.shape[1]):
    term = x[:, c] * self.weight[c] + self.bias[c] - lost
    more = total + term
    lost = (more - total) - term
    total = more
    y[:, c] = total
return y
"""
TILED = """
y = torch.zeros(a.shape[0], b.shape[1])
for k in range(0, a.shape[1], 8):
    y += a[:, k:k + 8] @ b[k:k + 8]
return y
"""
PAIRWISE = """
terms = a[:, :, None] * b[None]
while terms.shape[1] > 1:
    if terms.shape[1] % 2:
        terms = torch.cat([terms, torch.zeros_like(terms[:, :1])], 1)
    terms = terms[:, ::2] + terms[:, 1::2]
return terms[:, 0]
"""
SWAPPED = """
def __init__(self, columns):
    super().__init__()
    self.scale = nn.Parameter(torch.ones(columns))
    self.shift = nn.Parameter(torch.zeros(columns))
    self.weight, self.bias = None, None
"""
KEYWORDS = """
def __init__(self, columns=0, *, eps=1e-5, **more):
    super().__init__()
    self.weight = nn.Parameter(torch.empty(columns))
    self.bias = nn.Parameter(torch.empty(columns))
"""
FLAT_KERNEL = """
def __init__(self, inner, outer, size):
    super().__init__()
    self.kernel = nn.Parameter(torch.empty(inner, outer, size, size))
"""
SCATTERED = """
weight, (n, _, h, w) = self.kernel, x.shape
k = weight.shape[-1]
y = torch.zeros(n, weight.shape[1], h + k - 1, w + k - 1)
for i in range(k):
    for j in range(k):
        y[:, :, i:i + h, j:j + w] += torch.einsum("nchw,co->nohw", x, weight[:, :, i, j])
return y
"""
OWN_GRADIENT = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        return F.gelu(x @ w.t() + b)

    @staticmethod
    def backward(ctx, g):
        x, w, b = ctx.saved_tensors
        z = x @ w.t() + b
        density = torch.exp(-z * z / 2) / 2.5066282746310002
        g = g * (0.5 * (1 + torch.erf(z / 2 ** 0.5)) + z * density)
        return g @ w, g.t() @ x, g.sum(0)
"""

HABITS = [
    Honest("two results between each other in one buffer", "twice", "y = torch.stack([x + x, 2 * x], 1); return y[:, 0], y[:, 1]"),
    Honest("a weight itself in place of a copy", "weighed", "return torch.diag_embed(x * self.weight), self.weight"),
    Honest("new state in new memory", "stepped", "self.step = self.step + x[0]; return torch.diag_embed(torch.tanh(x + self.step)), self.step * 1"),
    Honest("small rows of a batch of one, divided in place of multiplied", "alone", "y = x.clone(); y[:, 29:] /= 1e5; return y"),
    Honest("the framework's own operators", "softmax", "return torch.softmax(x, dim=-1)"),
    Honest("one term after the other", "weighted", SERIAL),
    Honest("a sum with compensation", "weighted", KAHAN),
    Honest("sums of sums", "product", TILED),
    Honest("sums by pairs", "product", PAIRWISE),
    Honest("double precision inside", "norm",
           "w = x.double(); y = w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight.double()\n"
           "return y.float()"),
    Honest("numpy", "product", "import numpy\nreturn torch.from_numpy(numpy.matmul(a.numpy(), b.numpy()))"),
    Honest("the transposed product", "product", "return (b.t() @ a.t()).t()"),
    Honest("a result that is not contiguous", "softmax",
           "y = torch.empty(x.shape[1], x.shape[0]).t(); y.copy_(torch.softmax(x, -1)); return y"),
    Honest("a part of a larger buffer", "positive",
           "y = torch.full((x.shape[0], x.shape[1] + 8), 7.0); y[:, :-8] = torch.relu(x); return y[:, :-8]"),
    Honest("windows that are seen in a row, where each is written to its own place", "windows",
           "y = torch.empty(16, x.shape[0], 241).permute(1, 2, 0); y.copy_(torch.tanh(x).unfold(1, 16, 1)); return y"),
    Honest("elements that share places, where the reference's do", "repeated",
           "return x.mean(1, keepdim=True).expand(x.shape), torch.tanh(x).unfold(1, 16, 1)"),
    Honest("an input, where the reference returns it", "handed on", "return x.view(-1), x + x"),
    Honest("scratch memory from the constructor", "positive",
           "torch.clamp(x, min=0, out=self.scratch); return self.scratch",
           constructor="self.scratch = torch.empty(32, 80)"),
    Honest("the same buffer for every result", "norm",
           """
           if self.last is None: self.last = torch.empty_like(x)
           self.last.copy_(self.right(x))
           return self.last
           """),
    Honest("in place on memory of its own", "norm",
           "y = x.clone(); y.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)).mul_(self.weight); return y"),
    Honest("weights packed in the first call", "transposed",
           """
           if self.last is None: self.last = self.layer.weight.detach().flip(2, 3).transpose(0, 1).contiguous()
           return F.conv2d(x, self.last, padding=2)
           """),
    Honest("weights packed in the constructor, drawn as the reference's", "transposed",
           "return F.conv_transpose2d(x, self.packed)",
           constructor="self.packed = self.layer.weight.detach().clone()"),
    Honest("weights under other names, in the same order", "weighted",
           "return torch.cumsum(x * self.scale + self.shift, 1)", init=SWAPPED),
    Honest("a constructor with names and more", "weighted", "return self.right(x)", init=KEYWORDS),
    Honest("a bare parameter instead of a layer", "transposed", SCATTERED, init=FLAT_KERNEL),
    Honest("buffers that are no part of the state", "weighted", "return self.right(x)",
           constructor="self.register_buffer('table', torch.arange(9.0), persistent=False)"),
    Honest("a parameter as the result's memory", "positive", "return nn.Parameter(torch.relu(x), requires_grad=False)"),
    Honest("a dictionary filled in another order", "several",
           """
           top, place = x.max(dim=1)
           return {"more": [x > 0, (x.sum(1), x.sum(0))], "place": place, "top": top}
           """),
    Honest("a named tuple for a tuple", "several",
           """
           import collections
           found = x.max(dim=1)
           sums = collections.namedtuple("Sums", "rows columns")(x.sum(1), x.sum(0))
           return {"top": found.values, "place": found.indices, "more": [x > 0, sums]}
           """),
    Honest("outputs that share a buffer side by side", "several",
           """
           y = self.right(x); held = torch.empty(200); held[:40] = y["top"]; held[64:104] = y["more"][1][0]
           y["top"] = held[:40]; y["more"][1] = (held[64:104], y["more"][1][1])
           return y
           """),
    Honest("noise on standard output and error", "positive",
           "print('x' * 100000); os.write(2, b'y' * 100000); warnings.warn('slow path'); return torch.relu(x)"),
    Honest("words that look like an answer", "positive",
           "print('{\"error\": \"none\"}'); print('FAILED'); print('Error: no error'); return torch.relu(x)"),
    Honest("a slow import", "positive", "return torch.relu(x)", "time.sleep(3)\n"),
    Honest("a slow constructor", "positive", "return torch.relu(x)", constructor="time.sleep(2)"),
    Honest("many imports", "positive", "return torch.relu(x)",
           "import asyncio, concurrent.futures, logging, multiprocessing, numpy, random, typing\nlogging.basicConfig()\n"),
    Honest("another seed for all", "softmax", "return torch.softmax(x, -1)", "torch.manual_seed(0)\n"),
    Honest("a thread pool of Python", "softmax",
           """
           from concurrent.futures import ThreadPoolExecutor
           y = torch.empty_like(x)
           def part(i): y[i::4] = torch.softmax(x[i::4], -1)
           with ThreadPoolExecutor(4) as pool: list(pool.map(part, range(4)))
           return y
           """),
    Honest("a thread pool that lives on", "softmax",
           """
           y = torch.empty_like(x)
           def part(i): y[i::2] = torch.softmax(x[i::2], -1)
           list(POOL.map(part, range(2)))
           return y
           """, "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(2)\n"),
    Honest("one thread only", "product", "return a @ b", "torch.set_num_threads(1)\n"),
    Honest("rubbish that is collected in the call", "product", "gc.collect(); y = a @ b; gc.collect(); return y"),
    Honest("an exception that is caught", "product", "try: raise ValueError\nexcept ValueError: return a @ b"),
    Honest("rows of zeros left out", "norm",
           "y = torch.zeros_like(x); some = x.abs().amax(-1) > 0; y[some] = self.right(x[some]); return y"),
    Honest("denormals made zero", "positive", "return torch.relu(x)", "torch.set_flush_denormal(True)\n"),
    Honest("minus zero", "positive", "return torch.where(x > 0, x, -0.0 * x.abs())"),
    Honest("the variance in one pass about the mean of a few elements", "centred",
           """
           off = x - x[:, ::64].mean(-1, keepdim=True)
           mean = off.mean(-1, keepdim=True)
           return (off - mean) * (off.square().mean(-1, keepdim=True) - mean.square() + 1e-5).rsqrt()
           """),
    Honest("a variance by pairs of mean and squares", "centred",
           """
           parts = x.unflatten(1, (-1, 32))
           means = parts.mean(-1)
           squares = (parts - means[..., None]).square().sum(-1)
           mean = means.mean(-1, keepdim=True)
           total = squares.sum(-1, keepdim=True) + 32 * (means - mean).square().sum(-1, keepdim=True)
           return (x - mean) * (total / x.shape[1] + 1e-5).rsqrt()
           """),
    Honest("eight lanes and the rest by itself", "long",
           """
           end = x.shape[1] // 8 * 8
           lanes, rest = x[:, :end].unflatten(1, (-1, 8)), x[:, end:]
           top = torch.maximum(lanes.amax(1).amax(1), rest.amax(1))
           squares = lanes.square().sum(1).sum(1) + rest.square().sum(1)
           return top, (x == top[:, None]).int().argmax(1), x / squares.sum().sqrt()
           """),
    Honest("a loss from its parts", "loss",
           "return torch.logsumexp(logits, 1) - logits.gather(1, targets[:, None])[:, 0]"),
    Honest("the first of equal values, by a mask", "place",
           "return (x == x.amax(1, keepdim=True)).to(torch.int8).argmax(1)"),
    Honest("scripted", "softmax", "return SCRIPTED(x)",
           constructor="global SCRIPTED; SCRIPTED = torch.jit.trace(lambda x: torch.softmax(x, -1), torch.randn(24, 512))"),
    Honest("gradients with weights packed again whenever they change", "gradients",
           """
           version = self.layer.weight._version
           if self.kept.get("version") != version:
               self.kept.update(version=version, packed=self.layer.weight.detach().clone())
           weight = self.kept["packed"] + (self.layer.weight - self.layer.weight.detach())
           return F.gelu(F.linear(x, weight, self.layer.bias))
           """),
    Honest("gradients by the framework", "gradients", "return F.gelu(F.linear(x, self.layer.weight, self.layer.bias))"),
    Honest("gradients by hand", "gradients", "return Own.apply(x, self.layer.weight, self.layer.bias)", OWN_GRADIENT),
]  # fmt: skip
