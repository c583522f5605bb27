"""A judging that is cancelled while its thread goes on: what the thread then makes is removed by it."""

import asyncio
import tempfile
import threading

import pytest

from agent import evaluation
from agent.evaluation import LocalEvaluator
from sandbox.baselines import Baselines
from sandbox.errors import MachineError
from sandbox.judge import Judge
from sandbox.stages import Built
from tests.executors.parts import QUICK, SUM, right

WAIT_S = 60


class Gated(Judge):
    """Builds once the gate is open: a candidate's folder, and nothing in it."""

    begun = threading.Event()
    gate = threading.Event()

    @property
    def reference(self):
        return None

    def build(self, candidate):
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        return Built(candidate)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("fresh", [True, False])
def test_a_build_that_nobody_waits_for_leaves_no_folder(place, monkeypatch, fresh):
    Gated.begun.clear()
    Gated.gate.clear()
    monkeypatch.setattr(evaluation, "Judge", Gated)

    async def cancelled():
        evaluator = LocalEvaluator(QUICK)
        task = asyncio.create_task(evaluator.evaluate(SUM, right(1).candidate, fresh=fresh))
        await asyncio.to_thread(Gated.begun.wait, WAIT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        evaluator.close()
        Gated.gate.set()

    asyncio.run(cancelled())  # waits for the thread
    assert list(place.iterdir()) == []


class Started:
    """A reference that has just been started."""

    closed = 0

    def __init__(self, *_, inputs):
        BASELINES[0].close()

    def close(self):
        type(self).closed += 1


BASELINES = []


def test_a_reference_that_starts_while_its_judge_is_closed_is_closed_too(monkeypatch):
    monkeypatch.setattr("sandbox.baselines.ReferenceSession", Started)
    BASELINES[:] = [Baselines(SUM, QUICK)]
    with pytest.raises(MachineError, match="the judging of cumsum was ended"):
        BASELINES[0].eager(0)
    assert Started.closed == 1 and not BASELINES[0].has_started
