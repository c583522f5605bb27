"""What baselines took is known to whoever asks, without judging anything."""

import pytest

from kernelwright.problems import load_problem
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.timing.baseline_facts import QUICK, BaselineTimes, in_words
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing

SETTINGS = Settings(threads=3)
PROBLEM, OTHER = load_problem("rms_norm"), load_problem("softmax_rows")


@pytest.fixture
def times(tmp_path):
    return BaselineTimes(PROBLEM, Store("baselines", tmp_path))


def measurement(eager_ms=2.0, placebo=1.0, samples=QUICK):
    def pairing(name, ms):
        return Pairing(baseline=name, candidate_ms=(1.0,) * samples, baseline_ms=(ms,) * samples)

    pairings = (pairing("eager", eager_ms), pairing("torch.compile default", 1.5))
    return Measurement(pairings=pairings, threads=3, placebo=pairing("eager again", placebo))


def test_what_was_measured_is_known_with_interval_device_versions_and_date(times):
    times.keep(measurement(), SETTINGS)
    compiled, eager = times.known()
    assert (eager.baseline, eager.median_ms, eager.samples) == ("eager", 2.0, QUICK)
    assert eager.low_ms == pytest.approx(2.0) == eager.high_ms
    assert eager.device.endswith(", 3 threads") and eager.versions["torch"] and eager.measured_at[:2] == "20"
    assert compiled.baseline == "torch.compile default"


def test_it_is_told_on_one_line_the_fastest_first(times):
    times.keep(measurement(), SETTINGS)
    (line,) = in_words(times.known())
    assert "default 1.50 ms, eager 2.00 ms" in line


def test_a_later_measurement_takes_the_place_of_an_earlier_one(times):
    times.keep(measurement(eager_ms=2.0), SETTINGS)
    times.keep(measurement(eager_ms=3.0), SETTINGS)
    assert [time.median_ms for time in times.known()] == [1.5, 3.0]


def test_a_quick_check_does_not_replace_a_timing(times):
    times.keep(measurement(eager_ms=2.0), SETTINGS)
    times.keep(measurement(eager_ms=3.0, samples=QUICK - 1), SETTINGS)
    assert [time.median_ms for time in times.known()] == [1.5, 2.0]


def test_what_the_placebo_speaks_against_or_is_of_another_problem_is_not_told(times, tmp_path):
    times.keep(measurement(placebo=2.0), SETTINGS)
    assert times.known() == []
    BaselineTimes(OTHER, Store("baselines", tmp_path)).keep(measurement(), SETTINGS)
    assert times.known() == []


def test_times_with_other_threads_stand_beside_each_other(times):
    for threads in (1, 3):
        times.keep(measurement(), Settings(threads=threads))
    assert len(in_words(times.known())) == 2


def test_files_that_do_not_hold_what_they_should_are_passed_over(times, tmp_path):
    times.keep(measurement(), SETTINGS)
    Store("baselines", tmp_path).put({"problem": PROBLEM.digest}, {"baseline": "eager"})
    (tmp_path / "baselines" / "broken.json").write_text("{")
    assert len(times.known()) == 2
