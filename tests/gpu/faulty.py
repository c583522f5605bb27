"""Candidates whose results are right and whose kernels touch memory that is not theirs: only a checker can tell."""

from tests.gpu.honest import ODD, triton

OVERRUN_KERNEL = """
@triton.jit
def overrun(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, value * 2 + 1, mask=at < n + 8)
"""
LAUNCH = """
y = torch.empty_like(x)
overrun[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
return y
"""
PROBLEM = ODD
OVERRUN = triton(OVERRUN_KERNEL, LAUNCH)
"""A mask that is too wide by eight elements. Torch's allocator rounds sizes up, so nothing else notices."""
