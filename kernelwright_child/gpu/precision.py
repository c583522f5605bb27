"""The precision policy, made the same for candidate and baseline: what torch's own products may do to float32."""

from typing import Any

import torch


def fix_precision(policy: str) -> dict[str, Any]:
    """Set torch's switches for `strict`, `tf32`, `half`, or `shipped`, which are torch's own defaults.

    Tells what they then are, for the record.

    Only the older switches are used: torch refuses to read them once the newer ones were written, and candidates and
    torch.compile read them. cudnn.benchmark stays off, so that a call's algorithm does not depend on which candidates
    ran before; a candidate that changes a switch answers for it with its tolerance.
    """
    lower, shipped = policy in ("tf32", "half"), policy == "shipped"
    torch.set_float32_matmul_precision("high" if lower else "highest")
    torch.backends.cuda.matmul.allow_tf32 = lower
    torch.backends.cudnn.allow_tf32 = lower or shipped
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = policy == "half" or shipped
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = policy == "half" or shipped
    torch.backends.cudnn.benchmark = False
    return told()


def told() -> dict[str, Any]:
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul.allow_fp16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "matmul.allow_bf16_reduced_precision_reduction": (
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }
