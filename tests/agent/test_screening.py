"""What a screening of variants asks of the judge."""

import asyncio
from typing import ClassVar

from agent import evaluation
from agent.evaluation import LocalEvaluator
from evals.executors.order import Order
from evals.executors.protocol import Question
from evals.executors.worker import Worker
from sandbox.errors import MachineError
from sandbox.judge import Judge
from sandbox.settings import Settings
from tests.executors.parts import SUM, right

CHOSEN = Settings(sanitize=True, profile=True, compiled=("default",))


class Asked(Judge):
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


def test_variants_are_screened_without_tools(monkeypatch):
    monkeypatch.setattr(evaluation, "Judge", Asked)

    def screen():
        evaluator = LocalEvaluator(CHOSEN)
        asyncio.run(asyncio.wait_for(expecting_none(evaluator), 30))

    assert without_tools(screened_with(monkeypatch, screen))


async def expecting_none(evaluator):
    try:
        await evaluator.screen(SUM, [right(1).candidate])
    except MachineError:
        return


def test_a_worker_checks_without_tools(monkeypatch):
    monkeypatch.setattr("evals.executors.worker.Judge", Asked)
    worker = Worker(Order(chosen={"sanitize": True, "profile": True, "compiled": ["default"]}))
    settings = screened_with(monkeypatch, lambda: worker.answer(Question(stage="check", work=right(1))))
    assert without_tools(settings)
