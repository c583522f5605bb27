import math

import pytest

from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.timing.samples import KEPT, Spreads, by_worker
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Pairing
from tests.sandbox.timing.test_timing import NORM


@pytest.fixture
def spreads(tmp_path):
    return Spreads(NORM, Settings(worker_pairs=5), Store("spreads", tmp_path))


def test_what_is_kept_is_what_is_expected_of_the_next_candidate(spreads, tmp_path):
    before = spreads.known()
    spreads.keep([0.001, -0.002, 0.001] * 4)
    again = Spreads(NORM, Settings(worker_pairs=5), Store("spreads", tmp_path))
    assert again.known() == spreads.known() != before
    assert again.known().sd < before.sd and again.known().degrees >= before.degrees


def test_what_was_seen_of_other_problems_here_is_what_a_new_one_begins_with(spreads, tmp_path):
    new = Spreads(NORM.model_copy(update={"source": NORM.source + "\n"}), Settings(worker_pairs=5), spreads._store)
    before = new.known()
    spreads.keep([0.01, -0.01] * 15)
    after = new.known()
    assert after.sd < before.sd and after.degrees == before.degrees


def test_the_latest_alone_are_kept(spreads):
    spreads.keep([0.5] * KEPT)
    spreads.keep([0.001] * KEPT)
    assert spreads.known().sd < 0.02


def test_other_threads_are_another_place(spreads, tmp_path):
    spreads.keep([0.001] * 30)
    other = Spreads(NORM, Settings(worker_pairs=5, threads=7), Store("spreads", tmp_path))
    assert other.known().sd > spreads.known().sd


def test_a_worker_pair_counts_by_its_median():
    placebo = Pairing(baseline="x", candidate_ms=(1.0,) * 4, baseline_ms=(1.1, 1.1, 0.9, 0.8), workers=(0, 0, 3, 3))
    assert by_worker(placebo) == {0: pytest.approx(math.log(1.1)), 3: pytest.approx(math.log(0.72) / 2)}
    assert by_worker(None) == {}


def test_without_a_store_of_its_own_they_are_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    spreads = Spreads(NORM, Settings(worker_pairs=5))
    spreads.keep([0.001] * 12)
    assert Spreads(NORM, Settings(worker_pairs=5)).known() == spreads.known()
    assert list(tmp_path.rglob("*"))
