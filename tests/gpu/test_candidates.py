"""The hostile and the honest candidates themselves: data that must make sense before a device sees it."""

import ast
import json

import pytest

from kernelwright.sandbox.authenticity.scan import refuse
from tests.gpu import faulty
from tests.gpu.attacks import ATTACKS, NOT_FASTER, SLOWER
from tests.gpu.clock_attacks import CLOCK_ATTACKS, HANGING, SLOW
from tests.gpu.clock_honest import CLOCK_HONEST
from tests.gpu.honest import HONEST

STAGES = {"scan", "build", "load", "run", "check", "time"}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_program_that_the_scan_lets_through(name):
    assert not refuse(ATTACKS[name].candidate.source)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_candidate_is_a_program_that_the_scan_lets_through(name):
    assert not refuse(HONEST[name].candidate.source)


PROBLEMS = {name: one.problem for name, one in (HONEST | CLOCK_ATTACKS | CLOCK_HONEST).items()}
CLOCKED = {name: one.candidate.source for name, one in (CLOCK_ATTACKS | CLOCK_HONEST).items()} | HANGING | SLOW


@pytest.mark.parametrize("name", CLOCKED)
def test_what_meets_the_clock_is_a_program_that_the_scan_lets_through(name):
    assert not refuse(CLOCKED[name])


def test_a_faulty_candidate_is_a_program_that_the_scan_lets_through():
    assert not refuse(faulty.OVERRUN)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_says_where_it_must_fail(name):
    attack = ATTACKS[name]
    assert attack.stage in (SLOWER, NOT_FASTER) or set(attack.stage.split("|")) <= STAGES
    assert bool(attack.words) == (attack.stage not in (SLOWER, NOT_FASTER))


def test_there_are_enough_honest_candidates_of_both_kinds():
    assert len([name for name in HONEST if name.startswith("cuda")]) >= 5
    assert len([name for name in HONEST if name.startswith("triton")]) >= 5


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_keeps_the_convention(name):
    names = {node.name for node in ast.parse(PROBLEMS[name].source).body if hasattr(node, "name")}
    assert {"Model", "get_inputs", "get_init_inputs"} <= names
    assert json.loads(PROBLEMS[name].model_dump_json())["size"] == "gpu"
