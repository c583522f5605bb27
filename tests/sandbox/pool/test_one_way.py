"""`judge`, `run`, `score` and `JudgePool` judge alike: what one says of a candidate, all say."""

import asyncio

import pytest

from kernelwright import judge_many
from kernelwright.agent.scheduler import evaluating
from kernelwright.sandbox.pool.executor import LocalExecutor, own_cores
from kernelwright.sandbox.pool.judge_pool import Where
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.report import report
from tests.support.executors import QUICK, batch, judged

pytestmark = pytest.mark.slow


def by_run(works):
    async def search():
        async with evaluating(Where(), QUICK) as evaluator:
            found = [await evaluator.evaluate(work.problem, work.candidate) for work in works]
            assert await evaluator.screen(works[1].problem, [works[1].candidate]) == [None]
            for work in works:
                evaluator.release(work.problem)
            return found

    return asyncio.run(search())


def told(verdict):
    found = report(verdict)
    return found["outcome"], found["stage"], (found["reason"] or "").partition(":")[0]


@pytest.mark.long
def test_all_four_ways_give_the_same_verdicts():
    works = batch()
    with Judges(QUICK) as judges:
        expected = [told(judges.judge(work.problem, work.candidate)) for work in works]
    assert [one[0] for one in expected] == ["passed", "failed", "failed", "passed", "failed", "failed"]
    assert [told(verdict) for verdict in by_run(works)] == expected
    found, _ = asyncio.run(judged(LocalExecutor(QUICK, 2), works))
    assert [told(one.verdict) for one in found] == expected
    pairs = [(work.problem, work.candidate.source) for work in works]
    for where in (None, Where(devices=min(2, len(own_cores())))):
        reports = [result.report for result in judge_many(pairs, settings=QUICK, where=where)]
        assert [(one["outcome"], one["stage"], (one["reason"] or "").partition(":")[0]) for one in reports] == expected
