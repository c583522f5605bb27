"""Outcomes of racecheck and synccheck for kept kernels."""

import json

import pytest

from bench.results.again import check_hazards, read_hazards
from bench.results.records import read_index
from kernelwright.sandbox.gpu_tools import parse_hazards as read
from kernelwright.sandbox.gpu_tools import sanitizer_command
from tests.bench.results.walk import ROOT

SUMMARIES = {
    "clean": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "12 hazard": "========= RACECHECK SUMMARY: 12 hazards displayed (12 errors, 0 warnings)",
    "1 hazard": "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)",
    "3 error": "========= Barrier error detected.\n========= ERROR SUMMARY: 3 errors",
}


@pytest.mark.parametrize("outcome", SUMMARIES)
def test_the_summary_of_a_tool_is_its_outcome(outcome):
    assert read(SUMMARIES[outcome]) == outcome


def test_no_summary_and_a_program_that_broke_off_are_silence():
    assert read("", said="killed").startswith("silent")
    assert read(SUMMARIES["clean"], ended_well=False).startswith("silent")


def test_only_memcheck_pads_allocations():
    assert "--padding" in sanitizer_command("tool", "report")
    words = sanitizer_command("tool", "report", "racecheck")
    assert words[words.index("--tool") + 1] == "racecheck" and "--padding" not in words


def test_what_has_an_outcome_is_not_run_again(tmp_path):
    index = read_index(ROOT / "results")
    (tmp_path / "index.json").write_text(index.model_dump_json())
    known = {row.facts.best.candidate_digest: {"racecheck": "clean"} for row in index.rows if row.facts.best}
    (tmp_path / "hazards.json").write_text(json.dumps(known))
    assert check_hazards(tmp_path, tmp_path, pytest.fail) == 0 and read_hazards(tmp_path) == known
