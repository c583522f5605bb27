"""Parts of a captured program that are searched by recorded answers."""

import pytest

from examples.card.compare_all import answered
from kernelwright.programs.record import Chosen, Split, read_split, write_record


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
