"""Sixteen CUDA candidates on the device, builds not cached: a fresh process for each against our batch."""

from bench.throughput import CUDA, Target, Throughput, compare

CANDIDATES, USUAL = 16, 4
ROWS = 8192
LEAST_RATIO = 8


def run() -> Throughput:
    """About six minutes."""
    return compare(Target("cuda", CUDA, ROWS, CANDIDATES, USUAL, LEAST_RATIO))
