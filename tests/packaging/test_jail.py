"""The jail of an installed kernelwright: the same snooping as from a checkout; what it looks for is the package."""

import shutil

import pytest

from tests.packaging.environments import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_what_is_installed_is_hidden_from_a_candidate_but_for_the_jail_s_own_package(from_wheel, elsewhere):
    ask = "from kernelwright.sandbox.jail import bubblewrap; print(*bubblewrap.hidden_paths())"
    assert from_wheel.run("-c", ask, cwd=elsewhere).split() == [str(from_wheel.site / "kernelwright")]


def test_the_snooping_candidate_learns_nothing_from_what_is_installed(from_wheel, place):
    tests = place / "snooping"
    shutil.copytree(ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tests)
    said = from_wheel.run(
        *("-m", "pytest", "tests/hostile/test_attacks.py", "-q", "-k", "attempt or honest", "-p", "no:cacheprovider"),
        cwd=tests,
    )
    assert " passed" in said and "kernelwright" not in said
