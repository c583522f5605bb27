"""What a screening of variants asks of the judge."""

import contextlib
from typing import ClassVar

from kernelwright.sandbox.pool import judges
from kernelwright.sandbox.pool.devices import WorkerOptions
from kernelwright.sandbox.pool.judges import Judges, Worker
from kernelwright.sandbox.pool.protocol import Question
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Settings
from tests.support.executors import SUM, right

CHOSEN = Settings(sanitize=True, profile=True, compiled=("default",))


class Asked(judges._SharedJudge):
    """Notes the settings that it is made with, and judges nothing."""

    seen: ClassVar[list[Settings]] = []

    def __init__(self, problem, settings=None):
        super().__init__(problem, settings)
        self.seen.append(settings)

    def build(self, candidate):
        raise MachineError("nothing is built here")

    @property
    def reference(self):
        return None


def screened_with(monkeypatch, screen):
    monkeypatch.setattr(Asked, "seen", [])
    screen()
    (settings,) = Asked.seen
    return settings


def without_tools(settings):
    return (settings.sanitize, settings.profile, settings.compiled, settings.worker_pairs) == (False, False, (), 1)


def screened_by(judge):
    with contextlib.suppress(MachineError):
        judge()


def test_variants_are_screened_without_tools(monkeypatch):
    monkeypatch.setattr(judges, "_SharedJudge", Asked)
    with Judges(CHOSEN) as kept:
        settings = screened_with(
            monkeypatch, lambda: screened_by(lambda: kept.judge(SUM, right(1).candidate, asks={"effort": "screen"}))
        )
    assert without_tools(settings)


def test_what_is_not_screened_is_judged_with_what_was_chosen(monkeypatch):
    monkeypatch.setattr(judges, "_SharedJudge", Asked)
    with Judges(CHOSEN) as kept:
        settings = screened_with(monkeypatch, lambda: screened_by(lambda: kept.judge(SUM, right(1).candidate)))
    assert settings == CHOSEN


def test_a_worker_checks_without_tools(monkeypatch):
    monkeypatch.setattr(judges, "_SharedJudge", Asked)
    worker = Worker(WorkerOptions(chosen={"sanitize": True, "profile": True, "compiled": ["default"]}))
    settings = screened_with(monkeypatch, lambda: worker.answer(Question(stage="check", work=right(1))))
    assert without_tools(settings)
