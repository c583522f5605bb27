"""Programs on a card by their recorded answers: captured, judged, put back, compared."""

import pytest

from examples.card import compare_all as program
from kernelwright.programs.record import read_split
from kernelwright_child import driver

pytestmark = pytest.mark.gpu


def test_without_a_card_one_sentence_says_so(monkeypatch):
    if driver.device_count():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.delenv("KERNELWRIGHT_SMALL", raising=False)
    assert "the driver sees no CUDA device" in str(program.run())


@pytest.fixture
def card():
    """Not held: the commands that are started take it."""
    if driver.device_count() == 0:
        pytest.skip("the driver sees no CUDA device")


@pytest.mark.slow
def test_the_blocks_go_the_whole_way_and_are_right(card, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PROCESSES", "2")
    program.capture("block-infer", tmp_path, [])
    assert program.search("block-infer", tmp_path)
    found = program.comparison("block-infer", tmp_path, [])
    assert found.right and len(found.taken) == 12 and not found.fallbacks
    assert (tmp_path / "block-infer.svg").read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50-infer", "block-train", "resnet50-train"])
def test_other_programs_are_captured_and_have_parts(card, tmp_path, name):
    program.capture(name, tmp_path, ["small"])
    assert read_split(tmp_path / name).chosen
