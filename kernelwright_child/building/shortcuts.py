"""Puts the shortcuts in front of torch's own way to compile, inside a builder, before the candidate runs.

Nothing of torch is changed: it takes the compiler from `CXX` and `PYTORCH_NVCC`, as it does for any user. What the
candidate sets there itself wins.
"""

import json
import os
from pathlib import Path
from typing import Any

from kernelwright_child.building.compiling import PLAN

REPORT = "compilations.jsonl"
"""In the builder's home: one line for each compilation."""


def install(plan: dict[str, Any], home: str) -> None:
    """Take the plan that `kernelwright.sandbox.build.Toolchain.plan` made; an empty one changes nothing."""
    if not plan:
        return
    os.environ[PLAN] = json.dumps(plan | {"report": str(Path(home) / REPORT)})
    if os.access(plan["programs"]["cxx"], os.X_OK):
        os.environ["CXX"] = plan["programs"]["cxx"]
    if plan.get("nvcc") and os.access(plan["programs"]["nvcc"], os.X_OK):
        os.environ["PYTORCH_NVCC"] = plan["programs"]["nvcc"]
    if plan.get("cuda_architectures"):
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", plan["cuda_architectures"])
    os.environ["MAX_JOBS"] = str(min(int(os.environ.get("MAX_JOBS") or plan["jobs"]), plan["jobs"]))
