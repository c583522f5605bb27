import math

import pytest

from bench.simulated.capacity import Costs, Fleet, bottleneck, cold_share, limits, needed
from bench.simulated.clock import run_simulated
from bench.simulated.executor import SimulatedExecutor, Times, search_many

COSTS = Costs(build_s=20, judge_s=12, cold_s=6, latency_s=28, driver_s=0.001, store_s=0.002)
PLENTY = 10**6


@pytest.mark.parametrize(
    ("fleet", "part", "an_hour"),
    [
        (Fleet(devices=1, builders=PLENTY, in_flight=PLENTY), "devices", 300),
        (Fleet(devices=PLENTY, builders=1, in_flight=PLENTY), "builds", 180),
        (Fleet(devices=PLENTY, builders=PLENTY, in_flight=1), "asks in flight", 60),
        (Fleet(devices=PLENTY, builders=PLENTY, in_flight=PLENTY), "store", 1_800_000),
    ],
)
def test_the_part_that_there_is_least_of_sets_the_rate(fleet, part, an_hour):
    found, rate = bottleneck(fleet, COSTS)
    assert found == part
    assert rate == pytest.approx(an_hour, rel=1e-3)


def test_builds_that_are_all_known_set_no_limit():
    known = COSTS.model_copy(update={"cached": 1.0})
    assert limits(Fleet(devices=1, builders=1, in_flight=1), known)["builds"] == math.inf


def test_what_is_needed_for_a_rate_allows_that_rate_and_no_device_less_does():
    fleet = needed(10_000, COSTS)
    assert bottleneck(fleet, COSTS)[1] >= 10_000
    fewer = fleet.model_copy(update={"devices": fleet.devices - 1})
    assert bottleneck(fewer, COSTS)[1] < 10_000


@pytest.mark.parametrize("fleet", [(2, 40, 60), (16, 4, 200), (16, 60, 8)], ids=["devices", "builds", "asks"])
def test_the_simulation_comes_near_the_bound_and_never_above(fleet):
    devices, builders, problems = fleet
    times = Times(build_s=20, judge_s=12, cold_s=6, latency_s=28)
    load = run_simulated(search_many(SimulatedExecutor(times, devices, builders), problems, 1500 // problems, 1))
    share = cold_share(devices, problems, load.judged)
    costs = COSTS.model_copy(update={"cold_share": share})
    _, bound = bottleneck(Fleet(devices=devices, builders=builders, in_flight=problems), costs)
    assert 0.8 * bound < load.an_hour < 1.05 * bound
