"""Measured facts kept between runs: small JSON files in the user's cache folder, named by what they depend on.

A key names everything that the value depends on (device, versions, problem digest); another key is another file, so
nothing ever goes stale. Losing the folder costs only time.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from kernelwright.sandbox.machine.cache import cache_root, write_atomically
from kernelwright.sandbox.machine.identity import versions
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

LOG = logging.getLogger("kernelwright.sandbox.machine")
FORMAT = 1
"""Part of every name: a change in what is kept makes all older files unseen."""

Key = Mapping[str, Any]


class Store:
    """One kind of fact below a folder. Readable files of another key, or broken ones, count as absent."""

    _unwritten: ClassVar[dict[Path, str]] = {}
    """What this process could not put on disk."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._folder = (folder or cache_root()) / kind

    def get(self, key: Key) -> Any:
        path = self._path(key)
        text = self._unwritten.get(path) or _text(path)
        entry = _entry(text)
        if entry and entry["key"] == _plain(key):
            return entry["value"]
        if text:
            LOG.info("%s counts as absent: it is not what was put there", path)
        return None

    def items(self) -> list[tuple[Any, Any]]:
        found = [(path, _entry(_text(path))) for path in self._files()]
        return [(entry["key"], entry["value"]) for path, entry in found if entry and self._path(entry["key"]) == path]

    def _files(self) -> list[Path]:
        """None where the folder can not be read, as one that another user has left."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - a pattern of `Path` asks first, and raises elsewhere
        except OSError:
            return []
        return [self._folder / name for name in sorted(names) if name.endswith(".json") and not name.startswith(".")]

    def put(self, key: Key, value: Any) -> None:
        """Keep a value of JSON's types. Readers see the old file or the new one whole.

        Where nothing can be written it is kept for this process: on a full disk nothing is measured for every verdict.
        """
        path = self._path(key)
        text = json.dumps({"key": _plain(key), "value": value}, indent=1)
        self._unwritten[path] = text
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            self._unwritten.pop(path, None)
        except OSError as error:
            LOG.info("%s can not be written, and is kept for this process alone: %s", path, error)

    def _path(self, key: Key) -> Path:
        text = json.dumps([FORMAT, _plain(key)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _entry(text: str) -> dict[str, Any] | None:
    """What a file of ours holds; None for any other."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(entry, dict) and entry.keys() == {"key", "value"} and isinstance(entry["key"], dict)
    return entry if is_ours else None


def _plain(key: Key) -> Any:
    return json.loads(json.dumps(dict(key), sort_keys=True))


def work_key(problem_digest: str) -> dict[str, Any]:
    """Key of a problem's necessary work: the problem, torch's operators, and how the judge counts them."""
    return {"judge": JUDGE_VERSION, "problem": problem_digest, "torch": versions()["torch"]}


def plan_key(problem_digest: str) -> dict[str, Any]:
    """What a problem's need of memory depends on: the problem, and torch's operators."""
    return {"problem": problem_digest, "torch": versions()["torch"]}


def status_key(problem_digest: str, device: str) -> dict[str, Any]:
    """Key of a problem's status: the problem, the device, torch, and the judge's rules of correctness."""
    return {"judge": JUDGE_VERSION, "problem": problem_digest, "device": device, "torch": versions()["torch"]}


def baseline_key(problem_digest: str, device: str, versions: Mapping[str, str], baseline: str) -> dict[str, Any]:
    """What a baseline's time depends on: problem, device with its driver, all versions, the mode, and how it is timed.

    `baseline` is `eager` or the mode of torch.compile. A kept time is for tables and for choosing the better mode; a
    speedup is always taken from pairs that were measured together.
    """
    facts = {"problem": problem_digest, "device": device, "versions": dict(versions), "baseline": baseline}
    return facts | {"judge": JUDGE_VERSION}
