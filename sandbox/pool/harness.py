"""Under which conditions a verdict was reached: what decides whether it may stand beside another one."""

import hashlib
import json
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelwright.problems.record.base import Record

JUDGING = ("kernelwright_child", "kernelwright.sandbox", "kernelwright.problems")
"""The packages whose code decides a verdict."""
CODE = frozenset({".py", ".cpp", ".h"})
NO_CONDITION = frozenset({"memory_bytes", "device_memory_bytes"})
"""Settings that decide whether something can be judged, and never what the verdict is."""
NOT_CODE = frozenset({"catalog", "pool", "service", "__pycache__"})
"""Folders that decide nothing: data, and where judging runs."""


@cache
def harness_digest() -> str:
    """sha256 over the sources that decide a verdict, 16 hex digits. Verdicts of different harnesses are not compared.

    Any change of these sources changes it, also one that changes no verdict: better judged once too often.
    """
    digest = hashlib.sha256()
    for package in JUDGING:
        root = _folder(package)
        for place in sources(root):
            digest.update(f"{package}/{place.as_posix()}\0".encode() + (root / place).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def sources(root: Path) -> list[Path]:
    """The files below a package's folder that are code, in an order of their own; relative to it."""
    places = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.suffix in CODE]
    return [place for place in places if not NOT_CODE & set(place.parts)]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise AssertionError(f"the package {package} is part of this program")
    return Path(spec.origin).parent


@cache
def torch_version() -> str:
    """The installed torch, read without importing it, which takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


class Conditions(Record):
    """All beside problem and candidate that a verdict depends on."""

    harness: str
    device: str
    torch: str
    settings: str
    """The judge's settings as JSON, with sorted keys."""

    @classmethod
    def here(cls, device: str, settings: dict[str, Any]) -> "Conditions":
        """Those of this process for a device and a dumped `Settings`."""
        text = json.dumps({key: value for key, value in settings.items() if key not in NO_CONDITION}, sort_keys=True)
        return cls(harness=harness_digest(), device=device, torch=torch_version(), settings=text)

    @cached_property
    def alike(self) -> str:
        """The same for conditions whose verdicts may stand for one another: which cores were used tells nothing."""
        settings = json.loads(self.settings)
        cores = {"cores": len(settings["cores"])} if "cores" in settings else {}
        return json.dumps([self.harness, self.device, self.torch, settings | cores], sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """sha256 over the whole record, as 64 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def key(self, problem_digest: str, candidate_digest: str) -> str:
        """What identifies a verdict: the same key means that there is nothing to judge again."""
        return hashlib.sha256(f"{problem_digest}\0{candidate_digest}\0{self.digest}".encode()).hexdigest()
