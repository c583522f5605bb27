"""Under which conditions a verdict was reached: what decides whether it may stand beside another one."""

import hashlib
import json
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION

NO_CONDITION = frozenset({"memory_bytes", "device_memory_bytes"})
"""Settings that decide whether something can be judged, and never what the verdict is."""


@cache
def torch_version() -> str:
    """The installed torch, read without importing it, which takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


class Conditions(Record):
    """All beside problem and candidate that a verdict depends on."""

    judge_version: Annotated[str, JUDGE_FIELD]
    device: str
    torch: str
    settings: str
    """The judge's settings as JSON, with sorted keys."""

    @classmethod
    def here(cls, device: str, settings: dict[str, Any]) -> "Conditions":
        """Those of this process for a device and a dumped `Settings`."""
        text = json.dumps({key: value for key, value in settings.items() if key not in NO_CONDITION}, sort_keys=True)
        return cls(judge_version=str(JUDGE_VERSION), device=device, torch=torch_version(), settings=text)

    @cached_property
    def alike(self) -> str:
        """The same for conditions whose verdicts may stand for one another: which cores were used tells nothing."""
        settings = json.loads(self.settings)
        cores = {"cores": len(settings["cores"])} if "cores" in settings else {}
        return json.dumps([self.judge_version, self.device, self.torch, settings | cores], sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """sha256 over the whole record, as 64 hex digits."""
        fields = self.model_dump()
        fields["harness"] = fields.pop("judge_version")  # its first name: digests of stored records stay as they are
        order = ("harness", "device", "torch", "settings")
        text = json.dumps({name: fields[name] for name in order}, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def key(self, problem_digest: str, candidate_digest: str) -> str:
        """What identifies a verdict: the same key means that there is nothing to judge again."""
        return hashlib.sha256(f"{problem_digest}\0{candidate_digest}\0{self.digest}".encode()).hexdigest()
