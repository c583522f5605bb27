"""Five long transcripts of reasoning models, which are not part of the repository."""

import ast
import os
from pathlib import Path

import pytest

from tests.agent.replies.test_extraction import extracted

FOLDER = Path(os.environ.get("KERNELWRIGHT_SEEDS") or Path(__file__).parents[4] / "shared" / "seeds")
SEEDS = ["000", "001", "002", "003", "004"]
AFTER_THE_THOUGHT = ["000", "001", "003", "004"]
LINES = {"000": 193, "001": 169, "002": 164, "003": 188, "004": 201}


def transcript(seed: str) -> str:
    paths = sorted(FOLDER.glob(f"{seed}*.txt")) if FOLDER.is_dir() else []
    if not paths:
        pytest.skip(f"no transcript {seed} in {FOLDER}; set KERNELWRIGHT_SEEDS to the folder that holds it")
    return paths[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_final_block_is_taken_complete(seed: str) -> None:
    reply = transcript(seed)
    found = extracted(reply)
    tree = ast.parse(found.source)
    assert "ModelNew" in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert found.source.startswith("import torch\n") and found.source.count("\n") == LINES[seed]
    assert found.language == "cuda"
    is_behind = reply.rindex(found.source) > reply.rindex("</think>")
    assert is_behind == (seed in AFTER_THE_THOUGHT)
    assert is_behind == (found.warnings == ())


def test_the_later_of_two_blocks_is_taken() -> None:
    reply = transcript("004")
    assert reply[: reply.rindex(extracted(reply).source)].count("```python\n") == 2
