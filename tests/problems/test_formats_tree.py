import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kernelwright.evals.checking import check_entry, examine_problem
from kernelwright.problems.formats import read_collection
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.synthetic import COUNT, KINDS, SPECIAL, write_synthetic

CHILD_OF_8_GIB = JudgeSettings(memory_bytes=8 * 2**30)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    return root, write_synthetic(root)


@pytest.fixture(scope="module")
def entries(tree):
    return {entry.id: entry for entry in read_collection(tree[0]).entries}


def test_every_problem_has_its_entry(tree, entries):
    assert list(entries) == list(tree[1]) and len(entries) == COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_read_or_refused_as_it_should(tree, entries, kind):
    found = {entries[id].status for id, name in tree[1].items() if name == kind}
    assert found == {KINDS[kind].read}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_python_is_broken(tree, entries, kind):
    assert {entries[id].status for id, name in tree[1].items() if name == kind} == {"broken"}


def test_every_refusal_is_one_line_that_says_why(entries):
    refused = [entry for entry in entries.values() if entry.problem is None]
    assert refused and all(entry.why and "\n" not in entry.why for entry in refused)


def test_reading_runs_nothing(tree):
    before = set(sys.modules)
    read_collection(tree[0])
    assert not {name for name in set(sys.modules) - before if name.startswith("not_there")}


def test_needed_memory_is_told_before_anything_runs(tree, entries):
    large = [entries[id].problem for id, name in tree[1].items() if name == "much_memory"]
    sentences = {backend_of(CHILD_OF_8_GIB).refusal_by_text(problem) for problem in large}
    assert None not in sentences and all("GiB" in sentence for sentence in sentences)


def test_small_inputs_are_not_refused_for_memory(tree, entries):
    plain = [entries[id].problem for id, name in tree[1].items() if name == "plain"]
    assert {backend_of(CHILD_OF_8_GIB).refusal_by_text(problem) for problem in plain} == {None}


@pytest.mark.slow
def test_each_kind_ends_in_its_status_when_it_is_run_in_the_jail(tree, entries):
    first = {name: id for id, name in reversed(tree[1].items())}
    chosen = [entries[first[name]] for name in (*KINDS, *SPECIAL)]
    with ThreadPoolExecutor(2) as pool:
        lines = pool.map(partial(check_entry, examine_problem, JudgeSettings(threads=1)), chosen)
    found = {line.problem: line for line in lines}
    wrong = {name: found[first[name]] for name, kind in KINDS.items() if found[first[name]].status not in kind.judged}
    assert not wrong
