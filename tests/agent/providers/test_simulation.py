"""The made-up problems: the same ones whatever is tried on them."""

import asyncio
import random

import pytest

from kernelwright.agent.providers.simulated import (
    Assumptions,
    Landscape,
    SimulatedEvaluator,
    SimulatedKernel,
    SimulatedProvider,
    kernel_in,
    source_of,
)
from kernelwright.agent.replay import replay
from tests.support.search import CONFIG, new_log, searched
from tests.support.simulated import run_simulated


def test_the_same_seed_is_the_same_problem_in_whatever_order_it_is_tried():
    one, other = Landscape(3), Landscape(3)
    other.draft("work in blocks", random.Random(9))
    kernel = SimulatedKernel(0.0, "work in blocks")
    results = [landscape.improve(kernel, "less memory traffic", random.Random(1)) for landscape in (one, other)]
    assert results[0] == results[1]


def test_an_idea_pays_once():
    landscape, rng = Landscape(1, Assumptions(execution=0.0, ignores=0.0, improve_right=0.999)), random.Random(0)
    first = landscape.improve(SimulatedKernel(0.0, "a"), "b", rng)
    assert landscape.improve(first, "b", rng).log_speedup == first.log_speedup


def test_the_clock_jumps_over_waiting():
    async def work():
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return asyncio.get_running_loop().time()

    assert run_simulated(work()) == pytest.approx(7200)


def test_what_can_never_happen_is_no_endless_wait():
    async def work():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing is left"):
        run_simulated(work())


def test_a_source_says_what_it_is():
    kernel = SimulatedKernel(0.5, "a", ("b", "c"), 0.25, 3)
    assert kernel_in(source_of(kernel)) == kernel


def test_a_simulated_run_replays(tmp_path):
    config = CONFIG.model_copy(update={"attempts": 12, "slots": 2})
    with new_log(tmp_path / "run") as log:
        at_once = {"provider": SimulatedProvider(latency_s=(0, 0)), "evaluator": SimulatedEvaluator(seconds=0)}
        searched(log, **at_once, config=config)
        assert replay(log, tmp_path / "again").digest == log.digest()
