"""What a CUDA device can do at most: `python -m kernelwright.sandbox.floor.gpu_measure` prints one JSON object.

Trusted code, run alone.

Only rates that many long calls confirm are measured; the best of all bursts counts. Products run on zeros too, which
take less power than random numbers and so run at a higher clock: a floor must hold for any values.
"""

import json
from collections.abc import Callable

import torch

BUFFER_BYTES = 2**30
SIDE = 8192
BURSTS, CALLS = 8, 4
DTYPES = {
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
    "tf32": (torch.float32, True),
    "float32": (torch.float32, False),
    "float64": (torch.float64, False),
}
"""By kind of unit: dtype of the product, and whether TF32 is allowed."""
SLOW = ("float32", "float64")
"""Measured at half the side: an eighth of the time."""


def best_ms(run: Callable[[], object]) -> float:
    """Milliseconds of one call, on the device's events, in the best of several bursts."""
    run()
    times = []
    for _ in range(BURSTS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    least: float = min(times)
    return least


def memory() -> dict[str, float]:
    """Bytes a second of a copy, of reading alone and of writing alone."""
    count = BUFFER_BYTES // 4
    source, target = torch.ones(count, device="cuda"), torch.empty(count, device="cuda")
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "copy": (2, lambda: target.copy_(source)),
        "read": (1, lambda: torch.max(source)),
        "write": (1, lambda: target.fill_(1.5)),
    }
    return {name: 1e3 * share * BUFFER_BYTES / best_ms(run) for name, (share, run) in ways.items()}


def arithmetic() -> dict[str, float]:
    """Operations a second of large products, by kind of unit."""
    return {kind: _product(kind, *how) for kind, how in DTYPES.items()}


def _product(kind: str, dtype: torch.dtype, tf32: bool) -> float:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    side = SIDE // 2 if kind in SLOW else SIDE
    times = []
    for make in (torch.zeros, torch.randn):
        left, right = (make(side, side, device="cuda").to(dtype) for _ in range(2))
        times.append(best_ms(lambda left=left, right=right: left @ right))  # type: ignore[misc]
    return 2e3 * side**3 / min(times)


def main() -> None:
    print(json.dumps({"memory": memory(), "arithmetic": arithmetic(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
