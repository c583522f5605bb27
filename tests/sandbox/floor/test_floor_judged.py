"""A verdict carries the floor of its problem, and no time below what is possible at all is a win."""

import pytest

from kernelwright.sandbox.judge.floors import Floors
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.peaks import _key
from kernelwright.sandbox.storage import Store, work_key
from kernelwright.sandbox.verdict.errors import StageFailed
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.roofline import Level, Peaks
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Measurement, Pairing, Passed
from tests.support.problems import stateless, tiny_problem

pytestmark = pytest.mark.slow
SETTINGS = Settings(threads=1, warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4)
DOUBLED = tiny_problem(stateless("x * 2", "torch.randn(1024, 1024)"), name="doubled", size="file")
HONEST = Candidate(source=f"{DOUBLED.source}\nModelNew = Model\n")
MIB = 2**20


@pytest.fixture(scope="module")
def keeper():
    with Judge(DOUBLED, SETTINGS) as found:
        yield found


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def times(candidate_ms, eager_ms):
    pairing = Pairing(baseline="eager", candidate_ms=(candidate_ms,) * 4, baseline_ms=(eager_ms,) * 4)
    return Measurement(pairings=(pairing,), threads=1)


def keep_work(read_bytes):
    key = work_key(DOUBLED.digest)
    Store("works").put(key, {"read_bytes": read_bytes, "written_bytes": 0})


def test_a_verdict_tells_the_floor_and_how_close_the_candidate_comes(keeper):
    verdict = keeper.judge(HONEST)
    assert isinstance(verdict, Passed), verdict
    found = report(verdict)
    assert verdict.measurement.floor.work.bytes == 8 * MIB
    assert 0 < found["floor_ms"] < found["candidate_ms"]
    assert found["fraction_of_floor"] == pytest.approx(found["floor_ms"] / found["candidate_ms"])


@pytest.mark.long
def test_a_time_that_no_program_can_reach_is_refused(keeper, own_cache):
    with pytest.raises(StageFailed, match="less than this device") as stopped:
        Floors(DOUBLED, SETTINGS).added(keeper.reference, times(candidate_ms=1e-6, eager_ms=1.0))
    assert stopped.value.stage == "time"


@pytest.mark.long
def test_peaks_that_were_measured_too_low_are_measured_again(keeper, own_cache):
    slow = Peaks(device="busy", levels=(Level(name="memory", inside_bytes=0, bytes_per_s=1e6),), flops_per_s={})
    Store("peaks").put(_key(False, SETTINGS.threads), slow.model_dump(mode="json"))
    found = Floors(DOUBLED, SETTINGS).added(keeper.reference, times(candidate_ms=5.0, eager_ms=5.0))
    assert 0 < found.floor_ms < 5.0


@pytest.mark.long
def test_a_floor_above_the_reference_itself_is_none(keeper, own_cache):
    keep_work(read_bytes=2**45)
    found = Floors(DOUBLED, SETTINGS).added(keeper.reference, times(candidate_ms=5.0, eager_ms=5.0))
    assert found.floor is None


def test_the_work_of_a_problem_is_traced_once(keeper, own_cache):
    peaks = Peaks(device="known", levels=(Level(name="memory", inside_bytes=0, bytes_per_s=1e10),), flops_per_s={})
    Store("peaks").put(_key(False, SETTINGS.threads), peaks.model_dump(mode="json"))
    Floors(DOUBLED, SETTINGS).of(keeper.reference)
    kept = Store("works").get(work_key(DOUBLED.digest))
    assert kept["read_bytes"] == 4 * MIB
