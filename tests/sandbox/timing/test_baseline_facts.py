"""Facts of baselines that are stored: times, and how far processes of one baseline differ."""

import math

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.backends import CpuBackend
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.timing.baseline_facts import KEPT, QUICK, BaselineTimes, Spreads, by_worker, in_words
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing


def place(threads=3):
    return CpuBackend(JudgeSettings(threads=threads)).place


PROBLEM, OTHER = load_problem("rms_norm"), load_problem("softmax_rows")


@pytest.fixture
def times(tmp_path):
    return BaselineTimes(PROBLEM, Store("baselines", tmp_path))


def measurement(eager_ms=2.0, placebo=1.0, samples=QUICK):
    def pairing(name, ms):
        return Pairing(baseline=name, candidate_ms=(1.0,) * samples, baseline_ms=(ms,) * samples)

    pairings = (pairing("eager", eager_ms), pairing("torch.compile default", 1.5))
    return Measurement(pairings=pairings, threads=3, placebo=pairing("eager again", placebo))


def test_what_was_measured_is_known_with_its_conditions_and_reported_on_one_line_the_fastest_first(times):
    times.keep(measurement(), place())
    compiled, eager = times.known()
    assert (eager.baseline, eager.median_ms, eager.samples) == ("eager", 2.0, QUICK)
    assert eager.low_ms == pytest.approx(2.0) == eager.high_ms
    assert eager.device.endswith(", 3 threads") and eager.versions["torch"] and eager.measured_at[:2] == "20"
    assert compiled.baseline == "torch.compile default"
    (line,) = in_words(times.known())
    assert "default 1.50 ms, eager 2.00 ms" in line


@pytest.mark.parametrize(("samples", "eager_ms"), [(QUICK, 3.0), (QUICK - 1, 2.0)], ids=["a timing", "a quick check"])
def test_a_later_timing_replaces_an_earlier_one_and_a_quick_check_does_not(times, samples, eager_ms):
    times.keep(measurement(eager_ms=2.0), place())
    times.keep(measurement(eager_ms=3.0, samples=samples), place())
    assert [time.median_ms for time in times.known()] == [1.5, eager_ms]


def test_what_the_placebo_speaks_against_or_is_of_another_problem_is_not_told(times, tmp_path):
    times.keep(measurement(placebo=2.0), place())
    assert times.known() == []
    BaselineTimes(OTHER, Store("baselines", tmp_path)).keep(measurement(), place())
    assert times.known() == []


def test_times_with_other_threads_stand_beside_each_other(times):
    for threads in (1, 3):
        times.keep(measurement(), place(threads))
    assert len(in_words(times.known())) == 2


def test_files_that_do_not_hold_what_they_should_are_passed_over(times, tmp_path):
    times.keep(measurement(), place())
    Store("baselines", tmp_path).put({"problem": PROBLEM.digest}, {"baseline": "eager"})
    (tmp_path / "baselines" / "broken.json").write_text("{")
    assert len(times.known()) == 2


@pytest.fixture
def spreads(tmp_path):
    return Spreads(PROBLEM, CpuBackend(JudgeSettings(worker_pairs=5)), Store("spreads", tmp_path))


def test_what_is_kept_is_what_is_expected_of_the_next_candidate(spreads, tmp_path):
    before = spreads.known()
    spreads.keep([0.001, -0.002, 0.001] * 4)
    again = Spreads(PROBLEM, CpuBackend(JudgeSettings(worker_pairs=5)), Store("spreads", tmp_path))
    assert again.known() == spreads.known() != before
    assert again.known().sd < before.sd and again.known().degrees >= before.degrees


def test_what_was_seen_of_other_problems_here_is_what_a_new_one_begins_with(spreads, tmp_path):
    new = Spreads(OTHER, CpuBackend(JudgeSettings(worker_pairs=5)), spreads._store)
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
    other = Spreads(PROBLEM, CpuBackend(JudgeSettings(worker_pairs=5, threads=7)), Store("spreads", tmp_path))
    assert other.known().sd > spreads.known().sd


def test_a_worker_pair_counts_by_its_median():
    placebo = Pairing(baseline="x", candidate_ms=(1.0,) * 4, baseline_ms=(1.1, 1.1, 0.9, 0.8), workers=(0, 0, 3, 3))
    assert by_worker(placebo) == {0: pytest.approx(math.log(1.1)), 3: pytest.approx(math.log(0.72) / 2)}
    assert by_worker(None) == {}


def test_without_a_store_of_its_own_they_are_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    spreads = Spreads(PROBLEM, CpuBackend(JudgeSettings(worker_pairs=5)))
    spreads.keep([0.001] * 12)
    assert Spreads(PROBLEM, CpuBackend(JudgeSettings(worker_pairs=5))).known() == spreads.known()
    assert list(tmp_path.rglob("*"))
