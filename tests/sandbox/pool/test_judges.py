"""The judges of one process: what is ended in the middle, memory that runs out, and what a check leaves out."""

import contextlib
import errno
import gc
import tempfile
import threading
import weakref
from typing import ClassVar

import pytest
import torch

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.pool import judges
from kernelwright.sandbox.pool.executor import Question
from kernelwright.sandbox.pool.judges import Judges, within_memory
from kernelwright.sandbox.verdict.errors import MachineError, UnsupportedHere
from kernelwright.sandbox.verdict.settings import JudgeSettings
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


CHOSEN = JudgeSettings(sanitize=True, profile=True, compiled=("default",))


class Asked(judges._SharedJudge):
    seen: ClassVar[list[JudgeSettings]] = []

    def __init__(self, problem, settings=None):
        super().__init__(problem, settings)
        self.seen.append(settings)

    def build(self, candidate):
        raise MachineError("nothing is built here")

    @property
    def reference(self):
        return None


def screened_with(monkeypatch, screen):
    monkeypatch.setattr(judges, "_SharedJudge", Asked)
    monkeypatch.setattr(Asked, "seen", [])
    with contextlib.suppress(MachineError):
        screen()
    (settings,) = Asked.seen
    return settings


def without_tools(settings):
    return (settings.sanitize, settings.profile, settings.compiled, settings.worker_pairs) == (False, False, (), 1)


def test_variants_are_screened_without_tools_and_all_else_with_what_was_chosen(monkeypatch):
    candidate = right(1).candidate
    with Judges(CHOSEN) as kept:
        screened = screened_with(monkeypatch, lambda: kept.judge(SUM, candidate, overrides={"effort": "screen"}))
    with Judges(CHOSEN) as kept:
        assert screened_with(monkeypatch, lambda: kept.judge(SUM, candidate)) == CHOSEN
    assert without_tools(screened)


def test_a_worker_checks_without_tools(monkeypatch):
    with Judges(CHOSEN) as kept:
        settings = screened_with(monkeypatch, lambda: kept.answer(Question(stage="check", work=right(1))))
    assert without_tools(settings)


RAN_OUT = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB.\nSee the manual."),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


def failing(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize("error", RAN_OUT, ids=lambda error: type(error).__name__)
def test_memory_that_ran_out_names_the_problem(error):
    with pytest.raises(UnsupportedHere, match=r"^memory ran out.* cumsum .*\(.+\)"):
        within_memory(SUM, failing(error))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("a bug")])
def test_any_other_error_stays_what_it_is(error):
    with pytest.raises(type(error), match=str(error.args[-1])):
        within_memory(SUM, failing(error))


def test_what_the_failed_judging_held_is_let_go():
    held = []

    def work():
        large = torch.empty(8)
        held.append(weakref.ref(large))
        raise MemoryError

    with pytest.raises(UnsupportedHere) as caught:
        within_memory(SUM, work)
    gc.collect()
    assert caught.value.__context__ is None and held[0]() is None
