"""What a prompt is told of a problem's floor, before and after a verdict tells it."""

import pytest

from kernelwright.agent.briefs.hardware import sheet_in
from kernelwright.agent.briefs.needs import as_judged, as_remembered
from kernelwright.agent.log.view import View, fold
from kernelwright.prompts import TargetVersions, cpu_sheet, render
from kernelwright.prompts.brief import Brief
from kernelwright.sandbox.floor import processor
from kernelwright.sandbox.machine.fact_store import TRACE, Store
from kernelwright.sandbox.machine.identity import versions
from kernelwright.sandbox.verdict.peaks import Level, Peaks
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork
from tests.agent.search_parts import PROBLEM, new_log, searched

SHEET = cpu_sheet("Example CPU", 2, ["avx2"], {})
WORK = NecessaryWork(read_bytes=12_600_000, written_bytes=4_000, flops={"float32": 2_500_000_000})
PEAKS = Peaks(
    device="Example CPU",
    levels=(Level(name="memory", inside_bytes=0, bytes_per_s=20e9),),
    flops_per_s={"float32": 100e9},
)
FLOOR = Floor(work=WORK, memory_ms=0.5, direct_ms=0.25, least_ms=0.1, copy_ms=0.625)
NEEDS = "this problem: 12.6 MB to read and 4 kB to write, "


@pytest.fixture(scope="module")
def without_floor(tmp_path_factory):
    with new_log(tmp_path_factory.mktemp("needs") / "run") as log:
        searched(log)
        return fold(PROBLEM.name, log.events(PROBLEM.name))


@pytest.fixture(scope="module")
def with_floor(without_floor):
    second = without_floor.attempt(2)
    measurement = second.verdict.measurement.model_copy(update={"floor": FLOOR})
    judged = second.model_copy(update={"verdict": second.verdict.model_copy(update={"measurement": measurement})})
    return View(problem=PROBLEM.name, attempts=(without_floor.attempt(1), judged))


@pytest.fixture
def works(tmp_path):
    """A folder that holds the problem's work."""
    key = {"trace": TRACE, "problem": PROBLEM.digest, "torch": versions()["torch"]}
    Store("works", tmp_path).put(key, WORK.model_dump(mode="json"))
    return tmp_path


@pytest.fixture
def known(works):
    """A folder that holds the processor's peaks too."""
    Store("peaks", works).put(processor._key(2), PEAKS.model_dump(mode="json"))
    return works


def test_a_verdict_tells_bytes_operations_floor_and_the_time_of_pytorch(with_floor):
    *others, told = as_judged(SHEET, with_floor).facts
    arithmetic = "2.5 GFLOP in float32 the reference's way, 0.250 ms at its highest rate"
    copied = "0.500 ms on this device at the very least (0.625 ms for a plain copy of as many)"
    assert told == f"{NEEDS}{copied}; {arithmetic}; eager takes 1.20 ms"
    assert tuple(others) == SHEET.facts


def test_verdicts_without_a_floor_leave_the_sheet_as_it_is(without_floor):
    assert as_judged(SHEET, without_floor) == SHEET


def test_a_sheet_read_from_a_prompt_becomes_the_same_sheet_again(with_floor):
    sheet = as_judged(SHEET, with_floor)
    brief = Brief(problem=PROBLEM, target="cpp", role="propose", device=sheet, versions=TargetVersions())
    shown = next(section.text for section in render(brief).sections if section.name == "hardware")
    assert as_judged(sheet_in(shown, "cpp"), with_floor) == sheet


def test_work_that_was_counted_before_is_known_before_the_first_verdict(known):
    facts = as_remembered(SHEET, PROBLEM, 2, known).facts
    assert facts[-2] == "measured here: memory 20 GB/s, float32 100 GFLOP/s"
    assert facts[-1].startswith(NEEDS)


def test_peaks_that_nobody_has_measured_are_not_measured_for_a_prompt(works):
    assert as_remembered(SHEET, PROBLEM, 2, works) == SHEET
    assert [path.name for path in works.iterdir()] == ["works"]


def test_a_verdict_takes_the_place_of_what_was_remembered(known, with_floor):
    remembered = as_remembered(SHEET, PROBLEM, 2, known)
    assert [fact.startswith(NEEDS) for fact in as_judged(remembered, with_floor).facts].count(True) == 1


def test_of_a_problem_never_judged_nothing_is_remembered(tmp_path):
    assert as_remembered(SHEET, PROBLEM, 2, tmp_path) == SHEET
