"""Weights and inputs as they were, in one safetensors file: only where they are asked for."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import torch

from kernelwright.programs.capture.watching import CallWatch

VALUES = "values.safetensors"
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""The format's words for dtypes; tensors of others are left out."""


def write_values(watch: CallWatch, folder: Path) -> str:
    """Write `weights/ROOT/NAME` and `inputs/CLASS/NUMBER/LEAF`; the file's name within the folder.

    The format: eight bytes with the length of a JSON header, the header, then all bytes one after the other.
    """
    tensors = {name: tensor for name, tensor in _tensors(watch) if _dtype(tensor) in NAMES}
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[_dtype(tensor)],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / VALUES).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            if plain.numel():
                file.write(plain.view(torch.uint8).numpy().tobytes())
    return VALUES


def _tensors(watch: CallWatch) -> Iterator[tuple[str, torch.Tensor]]:
    for root, module in watch.roots():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"weights/{root}/{name}", tensor
    for number, kind in enumerate(watch.kinds.values()):
        for leaf, tensor in kind.kept.items():
            yield f"inputs/{type(kind.module).__name__}/{number}/{leaf}", tensor


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
