"""Mutants are found again after a move, and killed or not by the tests that call them."""

import json
import subprocess
import sys

import pytest

from bench.mutants import Code, Definition, Mutant, Tree, mutated, run

TOY = '''
def clamp(value, low, high):
    """Return the value within its limits."""
    if value < low:
        raise ValueError(f"{value + 1} is below {low}")
    return min(value, high)


class Counter:
    def __init__(self):
        self.count = 0

    def add(self, number):
        """Count a number."""
        self.count += number
        return self.count


def unused(value):
    return value * 2
'''
TOY_TEST = """
from toy.numbers import Counter, clamp

def test_clamp():
    assert clamp(3, 0, 2) == 2

def test_counter():
    assert Counter().add(2) == 2
"""


@pytest.fixture
def tree(tmp_path):
    for name, text in {"toy/__init__.py": "", "toy/numbers.py": TOY, "tests/test_numbers.py": TOY_TEST}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Tree(tmp_path, ("toy",))


def write_records(tree, mutants):
    tree.records.parent.mkdir(parents=True)
    tree.records.write_text(json.dumps([one._asdict() for one in mutants]))


def edit(function, original, replacement, kind="expression", **more):
    return Mutant(f"toy-{function}", "toy", function, kind, original, 0, replacement, **more)


CLAMP = edit("clamp", "min", "max")
ADD = edit("Counter.add", "self.count += number", "pass", "statement")
UNUSED = edit("unused", "value * 2", "value / 2")


def result(tree, mutant):
    definition = Code(tree).locate(mutant)
    assert isinstance(definition, Definition)
    names = {}
    exec(definition.path.read_text(), names)
    function = names[definition.name]
    function.__code__ = mutated(definition, mutant)
    return function(3, 0, 2)


def test_a_mutant_follows_its_function_to_another_file(tree):
    assert result(tree, CLAMP) == 3
    (tree.root / "toy/deeper").mkdir()
    (tree.root / "toy/numbers.py").rename(tree.root / "toy/deeper/moved.py")
    assert result(tree, CLAMP) == 3


def test_a_mutant_follows_an_alias(tree):
    path = tree.root / "toy/numbers.py"
    path.write_text(TOY.replace("def clamp", "def limited"))
    assert isinstance(Code(tree).locate(CLAMP), str)
    assert result(tree, CLAMP._replace(alias="limited")) == 3


def test_a_function_that_is_there_twice_is_ambiguous(tree):
    (tree.root / "toy/copy.py").write_text(TOY)
    assert "2 of 2" in Code(tree).locate(CLAMP)


def test_killed_survived_and_lost_are_told_apart(tree):
    write_records(tree, [CLAMP, ADD, UNUSED, edit("gone", "1", "2")])
    code = "import sys; from tests.bench.test_mutants import bench; sys.exit(bench(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", code, str(tree.root)], check=False).returncode == 0
    noted = {"toy-clamp": "killed", "toy-Counter.add": "killed", "toy-unused": "survived", "toy-gone": "lost"}
    assert json.loads(tree.baseline.read_text()) == noted


def test_a_mutant_that_was_killed_and_is_lost_fails(tree):
    write_records(tree, [edit("gone", "1", "2")])
    tree.baseline.write_text('{"toy-gone": "killed"}')
    outcome = run(tree=tree)
    assert "WAS KILLED" in outcome.text and not outcome.holds
    assert json.loads(tree.baseline.read_text()) == {"toy-gone": "killed"}


def bench(root):
    from pathlib import Path

    outcome = run(tree=Tree(Path(root), ("toy",)))
    print(outcome)
    return not outcome.holds
