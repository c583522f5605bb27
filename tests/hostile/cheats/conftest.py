"""One judge for each problem, shared by all its candidates."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.hostile.cheats.problems import CORPUS, posed


@contextmanager
def judges(settings: JudgeSettings) -> Iterator[Callable[[str], Judge]]:
    """Gives the judge of a problem by name, started when first asked for."""
    with ExitStack() as stack:
        started: dict[str, Judge] = {}

        def judge(name: str) -> Judge:
            if name not in started:
                started[name] = stack.enter_context(Judge(posed(name).problem, settings))
            return started[name]

        yield judge


@pytest.fixture(scope="session")
def judge_of():
    """Judges that soon lose patience: some cheats never answer."""
    with judges(CORPUS) as judge:
        yield judge
