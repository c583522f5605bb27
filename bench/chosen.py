"""What of a bench is wanted: `KERNELWRIGHT_BENCH=NAME,NAME` picks some of it."""

import os
from collections.abc import Iterable


def chosen(everything: Iterable[str]) -> list[str]:
    """The names that the environment picks; without any, everything."""
    picked = os.environ.get("KERNELWRIGHT_BENCH", "")
    return picked.split(",") if picked else list(everything)
