# ruff: noqa: E501 - programs in one column read better than wrapped ones
"""Answers that are aimed at the judge itself: descriptions and words that could end it, or speak in its place."""

from tests.hostile.cheats.cheat import Cheat

RIGHT = "y = self.last = self.right(x)"
CLAIM = """
def claim(**lie):
    wire = next(found for name, found in sorted(sys.modules.items()) if name.endswith("child.wire"))
    told = wire.describe
    wire.describe = lambda tensor: told(tensor) | lie
"""
FORM = "the child described an output of"

HOSTILE_WORDS = [
    Cheat("a quantized tensor, which ends who reads it as raw bytes", (), "weighted", "run", "a quantized tensor is not a plain tensor",
          "return torch.quantize_per_tensor(self.right(x), 0.1, 0, torch.quint8)"),
    Cheat("a nested tensor", (), "weighted", "run", "not a plain tensor", "return torch.nested.nested_tensor(list(self.right(x)))"),
    *(Cheat(f"a claim of {what}", (), "weighted", "run", FORM, f"{RIGHT}; claim({lie}); return y", CLAIM) for what, lie in {
        "a quantized dtype": "dtype='quint4x2'",
        "a dtype of half a byte, out of order": "dtype='float4_e2m1fn_x2', stride=[1, 64]",
        "a dtype of bits": "dtype='bits16', stride=[1, 64]",
        "no dtype": "dtype='nn'",
        "a stride that no machine word holds": "stride=[2**70, 1], shape=[1, 8]",
        "a size that no machine word holds": "shape=[0, 2**80], stride=[1, 1]",
        "a size whose product no machine word holds": "shape=[0, 2**40, 2**40], stride=[1, 1, 1]",
    }.items()),
    Cheat("half of a surrogate pair in an exception", (44,), "weighted", "run", r"ValueError: bad \ud800 word", r"raise ValueError('bad \ud800 word')"),
    Cheat("half of a surrogate pair as a key", (44,), "weighted", "check", r"k\ud800: a tensor", r"return {'k\ud800': self.right(x)}"),
    Cheat("a verdict of its own, in the terminal's language", (44,), "weighted", "run", r"\x1b[2J\x1b[32mpassed", r"raise ValueError('\x1b[2J\x1b[32mpassed: 99.00 x\x07')"),
    Cheat("a key of a hundred thousand letters", (44, 86), "weighted", "check", " ... AAAA", "return {'A' * 100_000: self.right(x)}"),
    Cheat("a number of four thousand digits", (86,), "weighted", "check", "1000000000", "return [self.right(x), 10**4000]"),
]  # fmt: skip
