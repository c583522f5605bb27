"""What the next prompt is told of the attempts before it."""

import pytest

from kernelwright.agent.briefs import BriefMaker, baselines_of, remembered
from kernelwright.agent.log.events import MeasuredProblem
from kernelwright.agent.log.view import View, fold
from kernelwright.problems.problem import Mode
from kernelwright.prompts import TargetVersions, cpu_sheet
from kernelwright.prompts.brief import Baselines
from kernelwright.sandbox import peaks
from kernelwright.sandbox.machine import versions
from kernelwright.sandbox.storage import Store, baseline_key, work_key
from kernelwright.sandbox.timing.baseline_facts import BaselineTime
from kernelwright.sandbox.verdict.roofline import Floor, Level, NecessaryWork, Peaks
from kernelwright.sandbox.verdict.verdicts import Measurement, Pairing, Passed
from tests.support.runs import doubted
from tests.support.search import CPU, EVIDENCE, PROBLEM, failed, new_log, searched


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("briefs") / "run") as log:
        searched(log)
        yield log


@pytest.fixture(scope="module")
def brief_before(log):
    """The brief that an attempt was asked with, made again from the events before it."""

    def made(number):
        events = list(log.events(PROBLEM.name))
        asked = next(event for event in events if event.kind == "asked" and event.attempt == number)
        maker = BriefMaker(device=CPU, versions=TargetVersions(), texts=log)
        return maker(PROBLEM, fold(PROBLEM.name, events[: events.index(asked)]), asked.body.ask)

    return made


def test_a_first_draft_has_no_parent_and_no_history(brief_before):
    brief = brief_before(1)
    assert (brief.parent, brief.history) == (None, ())


def test_a_repair_gets_the_source_the_reason_and_the_log(brief_before):
    parent = brief_before(3).parent
    assert (parent.number, parent.outcome) == (1, "failed at check")
    assert parent.source.startswith("# judged: check\n")
    assert parent.evidence.split("\n\n") == ["went wrong at check", "line 1\nline 2"]


def test_a_repair_of_a_reply_without_code_has_no_source(brief_before):
    parent = brief_before(4).parent
    assert (parent.source, parent.outcome) == ("", "no candidate (no_code)")
    assert parent.evidence and "no candidate" in parent.evidence


def test_an_improvement_gets_the_measured_times(brief_before):
    parent = brief_before(5).parent
    assert (parent.candidate_ms, parent.speedup) == (1.0, pytest.approx(1.5))
    assert "eager: 1.50 ms" in parent.evidence and "against eager: 1.50" in parent.evidence
    assert "1.50 to 1.50, faster" in parent.evidence


def test_the_history_holds_all_that_is_finished_and_says_where_a_source_came_again(brief_before):
    history = brief_before(5).history
    assert [row.outcome for row in history] == ["failed at check", "passed", "no candidate (no_code)", "passed"]
    assert "attempt 5" in brief_before(7).history[5].detail


SHEET = cpu_sheet("Example CPU", 2, ["avx2"], {})
MODE = Mode(is_training=False, running=("batch_norm",))
WORK = NecessaryWork(read_bytes=12_600_000, written_bytes=4_000, flops={"float32": 2_500_000_000}, mode=MODE)
LEVEL = Level(name="memory", inside_bytes=0, bytes_per_s=20e9)
PEAKS = Peaks(device="Example CPU", levels=(LEVEL,), flops_per_s={"float32": 100e9})
FLOOR = Floor(work=WORK, memory_ms=0.5, direct_ms=0.25, least_ms=0.1, copy_ms=0.625)
NEEDED = (("12.6 MB", "4 kB", "0.500 ms"), ("plain copy", "0.625 ms", "20.2 GB/s"), ("2.5 GFLOP", "0.250 ms"))


def says_what_is_needed(facts):
    pairs = zip(facts, NEEDED, strict=False)
    return len(facts) == len(NEEDED) and all(word in fact for fact, words in pairs for word in words)


@pytest.fixture(scope="module")
def searched_view(tmp_path_factory):
    """Of a search in which nobody looked what PyTorch takes, and no verdict had a floor."""
    with new_log(tmp_path_factory.mktemp("needs") / "run") as log:
        searched(log)
        return fold(PROBLEM.name, log.events(PROBLEM.name))


def with_floor(view):
    """The first two attempts; the second passed with a floor."""
    second = view.attempt(2)
    measurement = second.verdict.measurement.model_copy(update={"floor": FLOOR})
    judged = second.model_copy(update={"verdict": second.verdict.model_copy(update={"measurement": measurement})})
    return View(problem=PROBLEM.name, attempts=(view.attempt(1), judged))


def measured_as(floor=FLOOR, clock="bound", less_accurate=(), **baselines_ms):
    named = {name.replace("_", " "): ms for name, ms in baselines_ms.items()}
    pairings = [Pairing(baseline=name, candidate_ms=(4.0,), baseline_ms=(ms,)) for name, ms in named.items()]
    device = doubted(2.0, clock).measurement.on_device if clock == "events" else None
    told = {"floor": floor, "clock": clock, "protocol_ms": (0.05,), "on_device": device, "less_accurate": less_accurate}
    measurement = Measurement(pairings=pairings, threads=2, **told)
    return MeasuredProblem(problem=PROBLEM.name, verdict=Passed(measurement=measurement, evidence=EVIDENCE))


def told(event, **fields):
    return baselines_of(View(problem=PROBLEM.name, measured=event, **fields))


def test_pytorchs_times_are_told_the_fastest_first_with_what_each_of_them_is():
    times = told(measured_as(eager=5.55, eager_as_shipped=2.34, **{"torch.compile_default": 1.9}, clock="events")).times
    order = [("torch.compile", "1.90 ms"), ("as shipped", "2.34 ms"), ("eager: ", "5.55 ms")]
    assert all(name in time and ms in time for time, (name, ms) in zip(times, order, strict=True))
    assert "PyTorch's own" in times[1] and "policy above" in times[2]
    quick, full, _ = told(measured_as(eager_tf32=1.0, eager=5.55, less_accurate=("eager tf32",))).times
    assert "less accurate" in quick and "less accurate" not in full


def test_where_nothing_is_switched_eager_is_what_ships_and_what_the_clock_itself_takes_is_told():
    eager, nothing = told(measured_as(eager=5.55)).times
    assert eager.startswith("eager: 5.55 ms, ") and "as it ships" in eager
    assert "does nothing: 0.0500 ms" in nothing


def test_the_floor_is_told_with_a_plain_copy_and_without_a_floor_the_times_alone():
    known = told(measured_as(eager=5.55))
    assert says_what_is_needed(known.roofline) and known.mode == MODE
    baselines = told(measured_as(eager=5.55, floor=None))
    assert (len(baselines.times), baselines.roofline, baselines.mode) == (2, (), None)


def test_later_verdicts_change_nothing(searched_view):
    event = measured_as(eager=5.55, floor=None)
    assert told(event, attempts=with_floor(searched_view).attempts) == told(event)


@pytest.mark.parametrize(
    "event",
    [
        None,
        MeasuredProblem(problem=PROBLEM.name, why_not="too large"),
        MeasuredProblem(problem=PROBLEM.name, verdict=failed()),
    ],
)
def test_where_nothing_was_found_at_the_start_the_first_right_verdict_with_a_floor_tells(searched_view, event):
    assert told(event, attempts=searched_view.attempts) == Baselines()
    baselines = told(event, attempts=with_floor(searched_view).attempts)
    assert baselines.times[0].startswith("eager: 1.20 ms, ")
    assert says_what_is_needed(baselines.roofline)


@pytest.fixture
def works(tmp_path):
    key = work_key(PROBLEM.digest)
    Store("works", tmp_path).put(key, WORK.model_dump(mode="json"))
    return tmp_path


def test_what_earlier_judgings_left_is_known_without_a_search(works):
    Store("peaks", works).put(peaks._key(False, 2), PEAKS.model_dump(mode="json"))
    place = "Example CPU, 2 threads"
    for device, ms in ((place, 1.5), ("Another CPU, 2 threads", 9.0)):
        known = BaselineTime(
            baseline="eager", device=device, versions=versions(), median_ms=ms, low_ms=ms, high_ms=ms, samples=20,
            clock="bound", measured_at="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        key = baseline_key(PROBLEM.digest, device, versions(), "eager")
        Store(f"baselines/{PROBLEM.digest}", works).put(key, known.model_dump(mode="json"))
    found = remembered(PROBLEM, SHEET, 2, works)
    assert [time.partition(",")[0] for time in found.times] == ["eager: 1.50 ms"]
    memory, arithmetic = found.roofline
    assert "12.6 MB" in memory and "2.5 GFLOP" in arithmetic


def test_what_nobody_has_measured_or_judged_is_not_measured_for_a_prompt(works):
    assert remembered(PROBLEM, SHEET, 2, works) == Baselines(mode=MODE)
    assert [path.name for path in works.iterdir()] == ["works"]
    assert remembered(PROBLEM, SHEET, 2, works / "empty") == Baselines()
