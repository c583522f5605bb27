"""A judging that is ended while its thread goes on: what the thread then makes is removed by it."""

import tempfile
import threading

import pytest

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.pool import judges
from kernelwright.sandbox.pool.judges import Judges
from kernelwright.sandbox.verdict.errors import MachineError
from tests.support.executors import QUICK, SUM, right

WAIT_S = 60


class Gated(judges._SharedJudge):
    """Builds once the gate is open: a candidate's folder, and nothing in it."""

    begun = threading.Event()
    gate = threading.Event()

    @property
    def reference(self):
        return None

    def build(self, candidate):
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        return Built(candidate, backend_of(QUICK))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("fresh", [True, False])
def test_a_build_that_nobody_waits_for_leaves_no_folder(place, monkeypatch, fresh):
    Gated.begun.clear()
    Gated.gate.clear()
    monkeypatch.setattr(judges, "_SharedJudge", Gated)
    errors = []

    def judge():
        try:
            kept.judge(SUM, right(1).candidate, fresh=fresh)
        except MachineError as error:
            errors.append(str(error))

    kept = Judges(QUICK)
    thread = threading.Thread(target=judge)
    thread.start()
    assert Gated.begun.wait(WAIT_S)
    kept.close()
    Gated.gate.set()
    thread.join()
    assert not [path for path in place.iterdir() if path.is_dir()]
    (error,) = errors
    assert "cumsum was ended" in error


class Started:
    """A reference that has just been started."""

    closed = 0

    def __init__(self, *_, **__):
        BASELINES[0].close()

    def close(self):
        type(self).closed += 1


BASELINES = []


def test_a_reference_that_starts_while_its_judge_is_closed_is_closed_too(monkeypatch):
    monkeypatch.setattr("kernelwright.sandbox.timing.baselines.ReferenceSession", Started)
    BASELINES[:] = [backend_of(QUICK).baselines(SUM)]
    with pytest.raises(MachineError, match="cumsum was ended"):
        BASELINES[0].eager(0)
    BASELINES[0].close()  # it was not kept, so nobody closes it again
    assert Started.closed == 1
