"""`python -m tests.contract`: compare the recorded contract with the code; with `--write`, record the code as it is."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.contract import outputs, recorded, surface

PLAIN: dict[str, Callable[[], surface.Surface]] = {
    "commands": surface.commands,
    "choices": surface.choices,
    "errors": surface.errors,
    "names": surface.names,
    "surroundings": surface.surroundings,
    "tools": surface.tools,
}
"""Subjects that are read without starting anything."""


def json_keys(place: Path) -> surface.Surface:
    held = recorded.read("json_keys") if (recorded.DATA / "json_keys.toml").exists() else {}
    ready = outputs.prepared(place)
    found = outputs.quick_outputs(ready) | outputs.slow_outputs(ready)
    return outputs.surface_of(found, held, recorded.renames_of("json_keys"))


def main(words: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "service").mkdir()
        live = {subject: read() for subject, read in PLAIN.items()}
        live |= {"service": surface.service(place / "service"), "json_keys": json_keys(place)}
    differing = 0
    for subject, found in live.items():
        renames = recorded.renames_of(subject)
        if "--write" in words:
            recorded.write(subject, found, renames)
            continue
        for fault in recorded.faults(subject, recorded.read(subject), found, renames):
            differing += 1
            print(fault)
    return min(1, differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
