"""Measured facts kept between runs: small JSON files in the user's cache folder, named by what they depend on.

A key names everything that the value depends on (device, versions, problem digest); another key is another file, so
nothing ever goes stale. Losing the folder costs only time.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
"""Part of every name: a change in what is kept makes all older files unseen."""

Key = Mapping[str, Any]


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/kernelwright`, or `~/.cache/kernelwright`; nothing is created."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or "~/.cache").expanduser() / "kernelwright"


class Store:
    """One kind of fact below a folder. Readable files of another key, or broken ones, count as absent."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._folder = (folder or cache_folder()) / kind

    def get(self, key: Key) -> Any:
        """What was put under an equal key, or None."""
        try:
            entry = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return entry["value"] if isinstance(entry, dict) and entry.get("key") == _plain(key) else None

    def put(self, key: Key, value: Any) -> None:
        """Keep a value of JSON's types. Readers see the old file or the new one whole; a full disk is no error."""
        path = self._path(key)
        text = json.dumps({"key": _plain(key), "value": value}, indent=1)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(dir=path.parent, prefix=".")
            try:
                with open(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                Path(name).replace(path)
            except OSError:
                Path(name).unlink(missing_ok=True)

    def _path(self, key: Key) -> Path:
        text = json.dumps([FORMAT, _plain(key)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _plain(key: Key) -> Any:
    """The key as JSON gives it back."""
    return json.loads(json.dumps(dict(key), sort_keys=True))


def baseline_key(problem_digest: str, device: str, versions: Mapping[str, str], baseline: str) -> dict[str, Any]:
    """What a baseline's time depends on: the problem, the device with its driver, all versions, and the mode.

    `baseline` is `eager` or the mode of torch.compile. A kept time is for tables and for choosing the better mode; a
    speedup is always taken from pairs that were measured together.
    """
    return {"problem": problem_digest, "device": device, "versions": dict(versions), "baseline": baseline}
