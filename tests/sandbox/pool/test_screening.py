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
        screened = screened_with(monkeypatch, lambda: kept.judge(SUM, candidate, asks={"effort": "screen"}))
    with Judges(CHOSEN) as kept:
        assert screened_with(monkeypatch, lambda: kept.judge(SUM, candidate)) == CHOSEN
    assert without_tools(screened)


def test_a_worker_checks_without_tools(monkeypatch):
    worker = Worker(WorkerOptions(chosen={"sanitize": True, "profile": True, "compiled": ["default"]}))
    settings = screened_with(monkeypatch, lambda: worker.answer(Question(stage="check", work=right(1))))
    assert without_tools(settings)
