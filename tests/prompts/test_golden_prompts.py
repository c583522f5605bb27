"""Whole rendered prompts against golden copies, so that a changed prompt shows in the diff as prose.

After a change that is meant: `KERNELWRIGHT_UPDATE_GOLDEN=1 pytest tests/prompts`, then read the diff.
"""

import os
from pathlib import Path

import pytest

from kernelwright.problems.problem import Mode
from kernelwright.prompts import render
from kernelwright.prompts.brief import Baselines
from tests.support.briefs import BASELINES, BATCH_NORM, OLD_VERSIONS, PROBLEM, PRODUCT, brief

GOLDEN = Path(__file__).parent / "golden"
BACKWARD = PROBLEM.model_copy(update={"direction": "backward"})
BFLOAT16 = PROBLEM.model_copy(update={"dtype": "bfloat16"})
NARROW_PRODUCT = PRODUCT.model_copy(update={"dtype": "bfloat16"})
FREE = PROBLEM.model_copy(update={"direction": "both", "precision": "half", "operators": "no-library"})
TRAINED = Baselines(mode=Mode(is_training=True, batch=("batch_norm",)))

CASES = {
    f"{role}-{target}": brief(role, target)
    for role in ("propose", "repair", "improve")
    for target in ("cpp", "cuda", "triton")
}
CASES |= {f"propose-{target}": brief(target=target) for target in ("cutlass", "tilelang", "helion", "cute")}
CASES |= {
    "propose-cpp-torch-1.13": brief(versions=OLD_VERSIONS),
    "propose-cuda-torch-1.13": brief(target="cuda", versions=OLD_VERSIONS),
    "propose-cpp-backward": brief(problem=BACKWARD),
    "propose-cpp-batch-norm": brief(problem=BATCH_NORM, baselines=TRAINED),
    "propose-cuda-bfloat16": brief(target="cuda", problem=BFLOAT16),
    "improve-cuda-measured": brief("improve", "cuda", baselines=BASELINES),
    "propose-cuda-product": brief(target="cuda", problem=PRODUCT, baselines=BASELINES),
    "propose-cuda-product-bfloat16": brief(target="cuda", problem=NARROW_PRODUCT, baselines=BASELINES),
    "propose-triton-both-half-no-library": brief(target="triton", problem=FREE),
}


@pytest.mark.parametrize("name", CASES)
def test_prompt_is_the_golden_copy(name: str) -> None:
    path = GOLDEN / f"{name}.md"
    text = render(CASES[name]).text
    if os.environ.get("KERNELWRIGHT_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "if the change is meant, run with KERNELWRIGHT_UPDATE_GOLDEN=1"


def test_every_golden_copy_belongs_to_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.md")} == set(CASES)
