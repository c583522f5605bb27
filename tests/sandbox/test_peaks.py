"""A verdict carries the floor of its problem, and no time below what is possible at all is a win."""

import itertools
import time

import pytest
import torch

from kernelwright.problems import catalog_names, load_problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.peaks import _key, measured_again, peaks_here
from kernelwright.sandbox.storage import Store, baseline_key, work_key
from kernelwright.sandbox.timing.baseline_facts import Floors
from kernelwright.sandbox.verdict.errors import StageFailed
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.roofline import HEADROOM, Level, NecessaryWork, Peaks, floor_of
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Measurement, Pairing, Passed
from kernelwright_child.roofline import Convolution, Window, fewest, trace
from tests.support.problems import stateless, tiny_problem

CALLS = 5


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return Store("peaks", tmp_path_factory.mktemp("peaks"))


@pytest.fixture(scope="session")
def peaks(store):
    return peaks_here(False, torch.get_num_threads(), store)


@pytest.mark.slow
def test_measured_peaks_are_remembered(peaks, store):
    assert peaks_here(False, torch.get_num_threads(), store) == peaks


@pytest.mark.slow
@pytest.mark.long
def test_measuring_again_keeps_the_better_figures(peaks, store):
    raised = measured_again(False, torch.get_num_threads(), store)
    assert all(raised.flops_per_s[kind] >= rate for kind, rate in peaks.flops_per_s.items())
    assert peaks_here(False, torch.get_num_threads(), store) == raised


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog_names())
def test_eager_pytorch_takes_longer_than_the_floor(peaks, name):
    problem = load_problem(name, "cpu")
    namespace = {}
    exec(compile(problem.source, name, "exec"), namespace)
    model, inputs = namespace["Model"](*namespace["get_init_inputs"]()), namespace["get_inputs"]()
    floor = floor_of(NecessaryWork.of(trace(model, inputs)), peaks, problem.precision)
    times = []
    with torch.no_grad():
        for _ in range(CALLS):
            start = time.perf_counter()
            model(*inputs)
            times.append(1e3 * (time.perf_counter() - start))
    assert 0 < floor.impossible_below_ms <= floor.floor_ms < min(times)


SETTINGS = JudgeSettings(threads=1, warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4)
DOUBLED = tiny_problem(
    stateless("torch.dropout(x * 2, 0.5, False)", "torch.randn(1024, 1024)"), name="doubled", size="file"
)
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
    Store("works").put(key, {"read_bytes": read_bytes, "written_bytes": 0, "mode": {"is_training": True}})


@pytest.mark.slow
def test_a_verdict_tells_the_floor_and_how_close_the_candidate_comes(keeper):
    verdict = keeper.judge(HONEST)
    assert isinstance(verdict, Passed), verdict
    found = report(verdict)
    assert verdict.measurement.floor.work.bytes == 8 * MIB
    assert 0 < found["floor_ms"] < found["candidate_ms"]
    assert found["fraction_of_floor"] == pytest.approx(found["floor_ms"] / found["candidate_ms"])


@pytest.mark.slow
@pytest.mark.long
def test_a_time_that_no_program_can_reach_is_refused(keeper, own_cache):
    with pytest.raises(StageFailed, match="less than this device") as stopped:
        Floors(DOUBLED, backend_of(SETTINGS)).added(keeper.reference, times(candidate_ms=1e-6, eager_ms=1.0))
    assert stopped.value.stage == "time"


@pytest.mark.slow
@pytest.mark.long
def test_peaks_that_were_measured_too_low_are_measured_again(keeper, own_cache):
    slow = Peaks(device="busy", levels=(Level(name="memory", inside_bytes=0, bytes_per_s=1e6),), flops_per_s={})
    Store("peaks").put(_key(False, SETTINGS.threads), slow.model_dump(mode="json"))
    found = Floors(DOUBLED, backend_of(SETTINGS)).added(keeper.reference, times(candidate_ms=5.0, eager_ms=5.0))
    assert 0 < found.floor_ms < 5.0


@pytest.mark.slow
@pytest.mark.long
def test_a_floor_above_the_reference_itself_is_none(keeper, own_cache):
    keep_work(read_bytes=2**45)
    found = Floors(DOUBLED, backend_of(SETTINGS)).added(keeper.reference, times(candidate_ms=5.0, eager_ms=5.0))
    assert found.floor is None


@pytest.mark.slow
def test_the_work_of_a_problem_is_traced_once(keeper, own_cache):
    peaks = Peaks(device="known", levels=(Level(name="memory", inside_bytes=0, bytes_per_s=1e10),), flops_per_s={})
    Store("peaks").put(_key(False, SETTINGS.threads), peaks.model_dump(mode="json"))
    Floors(DOUBLED, backend_of(SETTINGS)).of(keeper.reference)
    kept = Store("works").get(work_key(DOUBLED.digest))
    assert kept["read_bytes"] == 4 * MIB
    assert kept["mode"]["is_training"] and kept["mode"]["silent"] == ["dropout"]


LEVELS = (
    Level(name="first", inside_bytes=0, bytes_per_s=1e12),
    Level(name="memory", inside_bytes=10_000_000, bytes_per_s=1e10),
)
PEAKS = Peaks(device="a device", levels=LEVELS, flops_per_s={"float32": 1e12, "float16": 16e12, "tf32": 8e12})


def met(window, near, far):
    """Pairs, positions and elements, counted one by one."""
    pairs = [
        (n, n * window.stride - window.padding + k * window.dilation)
        for n in range(near)
        for k in range(window.kernel)
        if 0 <= n * window.stride - window.padding + k * window.dilation < far
    ]
    return len(pairs), len({n for n, _ in pairs}), len({f for _, f in pairs})


WINDOWS = [Window(*words) for words in itertools.product((1, 2, 3, 5), (1, 2, 5), (0, 1, 3), (1, 2, 4))]


@pytest.mark.parametrize("near", [1, 7])
@pytest.mark.parametrize("far", [1, 9, 16])
def test_windows_meet_what_counting_one_by_one_finds(near, far):
    assert [window.axis(near, far) for window in WINDOWS] == [met(window, near, far) for window in WINDOWS]


def test_a_transposed_convolution_counts_no_taps_that_are_cropped_or_fall_between_the_strides():
    windows = [Window(3, 5, 1, 2)]
    layer = Convolution([1, 1, 4], [1, 1, 3], [1, 1, 18], windows, transposed=True, groups=1)
    # Positions 0, 5, 10, 15 less the padding, with taps at 0, 2, 4: of these twelve, -1 and 18 are cropped.
    assert layer.arithmetic.direct == 2 * 10


def test_the_least_arithmetic_is_never_more_than_the_direct():
    for window, transposed in itertools.product(WINDOWS, (False, True)):
        layer = Convolution([2, 4, 12], [4, 4, window.kernel], [2, 4, 12], [window], transposed, 1)
        assert layer.arithmetic.least <= layer.arithmetic.direct


def test_strassen_saves_an_eighth_a_level_of_large_products_and_nothing_of_small_ones():
    assert fewest(4, 4, 4) == 64
    assert 0.3 < fewest(4096, 4096, 4096) / 4096**3 < (7 / 8) ** 5


def test_bytes_pass_at_the_rate_of_the_cache_that_they_fit_or_of_the_memory():
    assert PEAKS.memory_ms(8_000_000) == pytest.approx(0.008 / HEADROOM)
    assert PEAKS.memory_ms(110_000_000) == pytest.approx(10 / HEADROOM)


def test_a_cache_that_was_measured_under_load_is_no_slower_than_the_memory_behind_it():
    near, far = (PEAKS.levels[0].model_copy(update={"bytes_per_s": 1e9}), PEAKS.levels[-1])
    slow = PEAKS.model_copy(update={"levels": (near, far)})
    assert slow.memory_ms(8_000_000) == pytest.approx(1e3 * 8_000_000 / far.bytes_per_s / HEADROOM)


def test_no_floor_is_above_the_time_of_a_plain_copy():
    copied = PEAKS.model_copy(update={"copy_bytes_per_s": 100 * PEAKS.levels[0].bytes_per_s})
    for count in (8_000_000, 110_000_000):
        floor = floor_of(NecessaryWork(read_bytes=count, written_bytes=0), copied, "strict")
        assert floor.memory_ms < floor.copy_ms


@pytest.mark.parametrize(("policy", "rate"), [("strict", 16e12 / 3), ("tf32", 16e12), ("half", 16e12)])
def test_float32_may_use_the_units_that_its_policy_allows_and_the_device_has(policy, rate):
    assert PEAKS.rate("float32", policy) == pytest.approx(rate)
    plain = PEAKS.model_copy(update={"flops_per_s": {"float32": 1e12}})
    assert plain.rate("float32", policy) == 1e12
    assert PEAKS.arithmetic_ms({"int64": 1e15}, policy) == 0, "an unknown dtype adds nothing"


def test_a_time_under_the_direct_arithmetic_but_over_the_least_is_not_impossible():
    work = NecessaryWork(
        read_bytes=1000, written_bytes=1000, flops={"float32": 10**12}, least_flops={"float32": 10**11}
    )
    floor = floor_of(work, PEAKS, "strict")
    assert floor.fraction(floor.direct_ms / 2) == pytest.approx(2)
    assert not floor.is_impossible(floor.direct_ms / 2)
    assert floor.is_impossible(floor.least_ms * 0.99)


def test_measuring_again_can_only_lower_the_floor():
    slower = PEAKS.model_copy(update={"flops_per_s": {"float32": 5e11}, "levels": (LEVELS[0],)})
    assert slower.raised(PEAKS).flops_per_s["float32"] == 1e12
    assert PEAKS.raised(slower).levels == LEVELS


def test_a_floor_tells_what_a_plain_copy_of_as_many_bytes_takes_where_its_rate_was_measured():
    work = NecessaryWork(read_bytes=3_000_000, written_bytes=1_000_000)
    copying = PEAKS.model_copy(update={"copy_bytes_per_s": 8e9})
    assert floor_of(work, copying, "strict").copy_ms == pytest.approx(0.5)
    assert floor_of(work, PEAKS, "strict").copy_ms is None
    assert PEAKS.raised(copying).copy_bytes_per_s == copying.raised(PEAKS).copy_bytes_per_s == 8e9


def test_the_store_gives_back_what_was_put_under_an_equal_key(tmp_path):
    store = Store("facts", tmp_path)
    store.put({"b": (1, 2), "a": "x"}, {"found": 3.5})
    assert Store("facts", tmp_path).get({"a": "x", "b": [1, 2]}) == {"found": 3.5}


def test_the_store_knows_nothing_of_another_key_or_of_a_broken_file_and_logs_that_one(tmp_path, logged):
    store = Store("facts", tmp_path)
    store.put({"a": 1}, 1)
    assert store.get({"a": 2}) is None
    (path,) = (tmp_path / "facts").iterdir()
    path.write_text("half of a fi")
    assert store.get({"a": 1}) is None and store.get({"a": 2}) is None
    (message,) = logged.messages
    assert f"{path} counts as absent" in message


def test_a_store_that_can_not_write_remembers_as_long_as_the_process_lives_and_logs_why(tmp_path, logged):
    (tmp_path / "facts").write_text("a file where the folder should be")
    Store("facts", tmp_path).put({"a": 1}, 1)
    (said,) = logged.messages
    assert "this process alone" in said
    assert Store("facts", tmp_path).get({"a": 1}) == 1
    assert Store("facts", tmp_path / "other").get({"a": 1}) is None


def test_what_a_store_holds_is_told_without_files_that_are_not_its_own(tmp_path):
    store = Store("facts", tmp_path)
    for number in (2, 1):
        store.put({"a": number}, number)
    (tmp_path / "facts" / "foreign.json").write_text('{"key": {"a": 1}, "value": "under another name"}')
    (tmp_path / "facts" / ".half.json").write_text("{")
    (tmp_path / "facts" / "broken.json").write_text("{")
    (tmp_path / "facts" / "list.json").write_text('{"key": [[]], "value": 2}')
    assert sorted(store.items(), key=str) == [({"a": 1}, 1), ({"a": 2}, 2)]


def test_baselines_of_different_drivers_are_kept_apart(tmp_path):
    store = Store("baselines", tmp_path)
    old, new = (baseline_key("0" * 64, "H200", {"driver": driver}, "eager") for driver in ("570", "580"))
    store.put(old, [1.0])
    assert store.get(new) is None


def test_work_of_another_form_is_refused():
    with pytest.raises(ValueError, match="greater than or equal"):
        NecessaryWork.of({"bytes": {"read": -1, "written": 0}, "flops": {}, "least_flops": {}})
