"""Recorded answers for programs on a card: each builds for one, and has the weights of the part that it is for."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

from examples.card.compare_all import answered
from kernelwright.agent.providers.recorded import read_session
from kernelwright.agent.replies import Extraction, extract
from kernelwright.programs.record import Chosen, Split, read_split, write_record
from kernelwright.sandbox.authenticity.scan import refuse

CARD = Path(__file__).parents[2] / "examples" / "card"
ANSWERS = sorted((CARD / "answers").glob("*/*/recorded/cuda/*.md"))
NARROW = ["-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr"]
"""Of torch's own flags, those that refuse something."""


def part_of(path):
    """The module that the answer is for: the first kind of its class in the program, or the second..."""
    program = path.parents[3].name.partition("-")[0]
    made = runpy.run_path(str(CARD / f"{program}.py"), run_name="program")
    stem, _, number = path.parents[2].name.rpartition("_")
    model = made["Block"](1024, 16) if program == "block" else made["network"]()
    found = [one for one in model.modules() if type(one).__name__.lower() == stem]
    return list({str(shapes(one)): one for one in reversed(found)}.values())[::-1][int(number) - 1]


def shapes(model):
    state = model.state_dict().items()
    return {name.replace(".", "_"): tuple(value.shape) for name, value in state if "num_batches" not in name}


def source_of(path):
    found = extract(path.read_text(encoding="utf-8"))
    assert isinstance(found, Extraction)
    return found.source


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def test_an_answer_is_one_that_the_scan_lets_through_and_its_story_names_it(path):
    assert not refuse(source_of(path))
    assert path.name in [entry.file for entry in read_session(path.parents[2].name, "cuda", path.parents[3]).entries]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is installed")
@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def test_an_answer_builds_for_a_card_and_has_the_weights_of_its_part(path, tmp_path, monkeypatch):
    def built(name, cuda_sources, extra_cuda_cflags, **_):
        (tmp_path / "source.cu").write_text(cuda_sources[0])
        flags = [*extra_cuda_cflags, *NARROW, "-std=c++17", "-gencode=arch=compute_90,code=sm_90"]
        place = str(tmp_path / f"{name}.so")
        subprocess.run(
            ["nvcc", *flags, "-Xcompiler", "-fPIC", "-shared", str(tmp_path / "source.cu"), "-o", place], check=True
        )
        return place

    monkeypatch.setattr(cpp_extension, "load_inline", built)
    (tmp_path / "candidate.py").write_text(source_of(path))
    model = runpy.run_path(str(tmp_path / "candidate.py"))["ModelNew"]()
    assert isinstance(model, nn.Module) and shapes(model) == shapes(part_of(path))
    wanted = torch.bfloat16 if "infer" in str(path) else torch.float32
    assert {value.dtype for value in model.state_dict().values()} == {wanted}


def chosen(part):
    return Chosen(part=part, ms=1.0, share=0.5, floor_ms=0.1, compiled_ms=None, gain_ms=0.9, sites=(("Model", part),))


def test_parts_without_an_answer_are_left_as_they_are(tmp_path):
    write_record(tmp_path, Split(program_ms=2.0, chosen=(chosen("stem_1"), chosen("block_1")), compiled=False))
    (tmp_path / "answers" / "block_1").mkdir(parents=True)
    assert answered(tmp_path, tmp_path / "answers") == 1
    assert [one.part for one in read_split(tmp_path).chosen] == ["block_1"]


def test_where_no_part_has_an_answer_the_parts_are_named(tmp_path):
    write_record(tmp_path, Split(program_ms=2.0, chosen=(chosen("stem_1"),), compiled=False))
    with pytest.raises(SystemExit, match=r"\(stem_1\) has an answer"):
        answered(tmp_path, tmp_path / "answers")
