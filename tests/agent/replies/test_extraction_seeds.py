"""Five long transcripts of reasoning models, which are not part of the repository."""

import ast
import os
from pathlib import Path

import pytest

from kernelwright.agent.replies import Extraction, extract

FOLDER = Path(os.environ.get("KERNELWRIGHT_SEEDS") or Path(__file__).parents[4] / "shared" / "seeds")
SEEDS = ["000", "001", "002", "003", "004"]
AFTER_THE_THOUGHT = ["000", "001", "003", "004"]
LINES = {"000": 193, "001": 169, "002": 164, "003": 188, "004": 201}


def transcript(seed: str) -> str:
    paths = sorted(FOLDER.glob(f"{seed}*.txt")) if FOLDER.is_dir() else []
    if not paths:
        pytest.skip(f"no transcript {seed} in {FOLDER}; set KERNELWRIGHT_SEEDS to the folder that holds it")
    return paths[0].read_text(encoding="utf-8")


def extracted(reply: str) -> Extraction:
    found = extract(reply)
    assert isinstance(found, Extraction), found
    return found


@pytest.mark.parametrize("seed", AFTER_THE_THOUGHT)
def test_the_block_after_the_thought_is_taken(seed: str) -> None:
    reply = transcript(seed)

    assert reply.rindex(extracted(reply).source) > reply.rindex("</think>")


@pytest.mark.parametrize("seed", AFTER_THE_THOUGHT)
def test_an_answer_after_the_thought_gives_no_warning(seed: str) -> None:
    assert extracted(transcript(seed)).warnings == ()


def test_a_block_in_the_thought_is_taken_where_it_is_the_only_one_with_a_warning() -> None:
    reply = transcript("002")
    assert reply.index(extracted(reply).source) < reply.index("</think>")
    assert "stands in the reasoning" in extracted(transcript("002")).warnings[0]


def test_the_later_of_two_blocks_is_taken() -> None:
    reply = transcript("004")

    assert reply[: reply.rindex(extracted(reply).source)].count("```python\n") == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_the_block_is_taken_as_a_whole(seed: str) -> None:
    assert extracted(transcript(seed)).source.count("\n") == LINES[seed]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_source_begins_with_an_import(seed: str) -> None:
    assert extracted(transcript(seed)).source.startswith("import torch\n")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_source_parses_and_defines_the_entry_class(seed: str) -> None:
    tree = ast.parse(extracted(transcript(seed)).source)

    assert "ModelNew" in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_language_is_cuda(seed: str) -> None:
    assert extracted(transcript(seed)).language == "cuda"
