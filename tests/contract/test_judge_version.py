"""`JUDGE_VERSION` rises when an outcome, a time or an interval changes; otherwise all of them stay."""

from collections import Counter

import pytest

from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.verdicts import Passed
from tests.honest.test_honest import HONEST
from tests.hostile.cheats.conftest import judges
from tests.hostile.cheats.corpus import CHEATS
from tests.hostile.cheats.problems import CORPUS
from tests.support.outcomes import FIGURES, OUTCOMES, PASSED, earlier_tables, figures, outcome_of, read_table

CANDIDATES = {f"hostile: {name}": one for name, one in CHEATS.items()}
CANDIDATES |= {f"honest: {name}": one for name, one in HONEST.items()}
VERSION, RECORDED = read_table(OUTCOMES)
FEWEST = 30


def drawn():
    """One candidate of each outcome, and more of those of the most common problems up to `FEWEST`.

    Candidates of the same problem share a judge, so common problems come first. Those whose outcome may vary come last.
    """
    common = Counter(one.problem for one in CANDIDATES.values())

    def order(name):
        may_vary = "|" in getattr(CANDIDATES[name], "words", "")
        return may_vary, -common[CANDIDATES[name].problem], name

    names = sorted(RECORDED.keys() & CANDIDATES.keys(), key=order)
    found, seen = [], set()
    for name in names:
        if not set(RECORDED[name]) <= seen:
            seen.update(RECORDED[name])
            found.append(name)
    found += [name for name in names if name not in found][: max(0, FEWEST - len(found))]
    return sorted(found, key=lambda name: CANDIDATES[name].problem)


@pytest.fixture(scope="module")
def judge_of():
    with judges(CORPUS) as judge:
        yield judge


def test_the_table_holds_every_candidate_under_the_judge_version_of_today():
    assert VERSION == JUDGE_VERSION, "run `make prove`, which writes the table of a new version"
    assert RECORDED.keys() == CANDIDATES.keys()
    assert all((one == [PASSED]) == name.startswith("honest: ") for name, one in RECORDED.items())


def is_kept(entry, earlier):
    """An outcome that varies from run to run may gain further kinds by hand."""
    return entry == earlier or (isinstance(earlier[0], str) and set(earlier) < set(entry))


@pytest.mark.parametrize("path", [OUTCOMES, FIGURES], ids=["outcomes", "figures"])
def test_no_committed_entry_changed_under_the_same_version(path):
    """Candidates may be added. A candidate that was renamed or removed is not in the table any more."""
    version, entries = read_table(path)
    for earlier_version, earlier in earlier_tables(path):
        if earlier_version == version:
            changed = {name for name in entries.keys() & earlier.keys() if not is_kept(entries[name], earlier[name])}
            assert not changed, f"{sorted(changed)} changed under version {version}; raise JUDGE_VERSION"


def test_speedup_interval_and_comparison_of_stored_verdicts_are_recomputed_alike():
    version, recorded = read_table(FIGURES)
    assert version == JUDGE_VERSION, "run `python -m tests.support.outcomes`"
    found = figures()
    assert len(found) > 40 and found.keys() == recorded.keys()
    for name, (*numbers, comparison) in found.items():
        *before, compared = recorded[name]
        assert (numbers, comparison) == (pytest.approx(before, rel=1e-9), compared), name


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn())
def test_a_candidate_of_each_outcome_is_judged_as_recorded(judge_of, name):
    one = CANDIDATES[name]
    verdict = judge_of(one.problem).judge(one.candidate)
    assert outcome_of(verdict) in RECORDED[name], verdict
    assert isinstance(verdict, Passed) == name.startswith("honest: ")
