"""What of a bench is wanted: `KERNELWRIGHT_BENCH=NAME,NAME` picks some, `KERNELWRIGHT_SECONDS` ends it in time."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelwright.problems.formats.reading import json_lines

STARTED = time.monotonic()


def chosen(everything: Iterable[str]) -> list[str]:
    """The names that the environment picks; without any, everything."""
    picked = os.environ.get("KERNELWRIGHT_BENCH", "")
    return picked.split(",") if picked else list(everything)


def is_in_time() -> bool:
    """Whether fewer seconds have passed since the start than the environment allows."""
    return time.monotonic() - STARTED < float(os.environ.get("KERNELWRIGHT_SECONDS", "inf"))


class Kept:
    """Rows as lines of JSON in a file, in the folder that `KERNELWRIGHT_OUT` names or in this one."""

    def __init__(self, name: str, folder: str = "runs") -> None:
        self.path = Path(os.environ.get("KERNELWRIGHT_OUT", folder)) / name

    def rows(self, *paths: str) -> list[dict[str, Any]]:
        """Those of the files, or without any those of its own."""
        files = [Path(path) for path in paths] or [self.path] * self.path.exists()
        return [json.loads(line) for file in files for line in json_lines(file.read_text())]

    def add(self, row: dict[str, Any]) -> None:
        """Append one; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
