"""Small real parts of a search: a problem, a scripted provider, an evaluator that reads; and killed searches."""

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.engine import Parts, search
from kernelwright.agent.log.records import Ask, Attempt, FoundCandidate, PromptOutline, Reply, Request, Usage
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.providers import ProviderError
from kernelwright.agent.replay import replay
from kernelwright.agent.strategies import load_strategy
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt, TargetVersions, cpu_sheet
from kernelwright.sandbox.verdict.verdicts import (
    Authenticity,
    Candidate,
    Evidence,
    Failed,
    Measurement,
    Pairing,
    Passed,
    Verdict,
)
from tests.support.problems import tiny_problem
from tests.support.runs import REFERENCE

PROBLEM = tiny_problem(REFERENCE, name="doubled", title="Twice the input")
CONFIG = SearchConfig(model="scripted-1", attempts=7, drafts=2, repairs=2, retry_delay_s=0)
SETTING = Setting(config={"search": {"model": "scripted-1"}}, device="Example CPU", versions={"python": "3.11"})
CPU = cpu_sheet("Example CPU", 2, ["avx2"], {"L1d": 48 << 10})
EVIDENCE = Evidence(jail=(), seconds={}, authenticity=Authenticity(label="custom"), problem_status=None, versions={})


def reply_with(judgement: str) -> str:
    """A reply whose candidate says in its first line how it is to be judged: `1.5` or `check`."""
    source = (
        f"# judged: {judgement}\nimport torch\n\nKIND = {judgement!r}\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    )
    return f"Here it is.\n\n```python\n{source}```\n"


def passed(speedup: float) -> Passed:
    pairing = Pairing(baseline="eager", candidate_ms=(1.0, 1.0), baseline_ms=(speedup, speedup))
    return Passed(measurement=Measurement(pairings=(pairing,), threads=2), evidence=EVIDENCE)


def failed(stage: str = "check") -> Failed:
    return Failed(stage=stage, reason=f"went wrong at {stage}", log="line 1\nline 2", evidence=EVIDENCE)


ANSWERS = {
    1: reply_with("check"),
    2: reply_with("1.2"),
    3: "I would rather talk about the weather.",
    4: reply_with("1.5"),
    5: reply_with("2.0"),
    6: reply_with("2.0"),
    7: reply_with("1.9"),
}
"""By attempt: a wrong draft, a right one, the first one's repair without code, its repair, and three improvements."""
STORY = [
    ("propose", None, "failed at check"),
    ("propose", None, "passed"),
    ("repair", 1, "no candidate (no_code)"),
    ("repair", 3, "passed"),
    ("improve", 4, "passed"),
    ("improve", 5, "passed"),
    ("improve", 5, "passed"),
]
"""What `refine` makes of `ANSWERS`: role, parent and outcome of each attempt."""


class Scripted:
    """Answers each attempt with its text, after raising the errors that stand before it."""

    name = "scripted"

    def __init__(self, answers: dict[int, str] = ANSWERS, errors: dict[int, list[Exception]] | None = None) -> None:
        self.answers = answers
        self.errors = errors or {}
        self.answered: Counter[int] = Counter()
        self.requests: list[Request] = []
        self.most_at_once = self.at_once = 0

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.errors.get(ask.attempt):
            raise self.errors[ask.attempt].pop(0)
        if ask.attempt not in self.answers:
            raise ProviderError(f"nothing is scripted for attempt {ask.attempt}; add it")
        self.answered[ask.attempt] += 1
        return Reply(
            text=self.answers[ask.attempt],
            finish_reason="stop",
            model="scripted-1",
            usage=Usage(output_tokens=7),
            provider=self.name,
            provider_request_id=None,
            latency_s=0.001,
        )


class ReadingEvaluator:
    """Judges by the first line of the source, and remembers what it judged."""

    def __init__(self, afresh: dict[str, str] | None = None) -> None:
        self.judged: Counter[str] = Counter()
        self.judged_afresh: Counter[str] = Counter()
        self.screened: list[str] = []
        self.afresh = afresh or {}
        """What a fresh judge says in place of a judgement."""

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, best_speedup: float | None = None
    ) -> Verdict:
        (self.judged_afresh if fresh else self.judged)[candidate.digest] += 1
        await asyncio.sleep(0.001)
        judgement = judgement_in(candidate.source)
        judgement = self.afresh.get(judgement, judgement) if fresh else judgement
        return failed(judgement) if judgement.isalpha() else passed(float(judgement))

    async def measure(self, problem: Problem) -> Verdict | None:
        return None

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        self.screened += [judgement_in(candidate.source) for candidate in candidates]
        return [None if one.isalpha() else 1 / float(one) for one in self.screened[-len(candidates) :]]


def judgement_in(source: str) -> str:
    """The value of `judged` in the first line, or that of the constant SPEED where one is defined."""
    speed = re.search(r"^SPEED = (\S+)$", source, re.MULTILINE)
    return speed[1] if speed else source.partition("\n")[0].removeprefix("# judged: ")


PROMPT = PromptOutline.empty("propose", "cpp")


def view_of(*rows):
    """A view from rows of role, parent, idea and speedup, or None for a failure, or ... for one that is pending."""
    attempts = [attempt(number, *row) for number, row in enumerate(rows, start=1)]
    return View(problem="p", attempts=tuple(attempts))


def attempt(number, role, parent, idea, end):
    ask = Ask(attempt=number, problem="p", role=role, target="cpp", parent=parent, idea=idea, directive="", model="m")
    open_one = Attempt(ask=ask, prompt=PROMPT, request_digest="", temperature=None, max_tokens=None, sample=0)
    if end is ...:
        return open_one
    found = {"extraction": FoundCandidate(digest=str(number), language="cpp", how="")}
    return open_one.model_copy(update=found | {"verdict": failed() if end is None else passed(end)})


def new_log(folder: Path) -> RunLog:
    return RunLog.create(folder, [PROBLEM], SETTING)


def parts_of(log: RunLog, provider=None, evaluator=None, config: SearchConfig = CONFIG, on_event=None) -> Parts:
    watching = {} if on_event is None else {"on_event": on_event}
    return Parts(
        strategy=load_strategy(config.strategy, config),
        provider=provider or Scripted(),
        evaluator=evaluator or ReadingEvaluator(),
        log=log,
        config=config,
        brief_for=BriefMaker(device=CPU, versions=TargetVersions(), texts=log),
        **watching,
    )


def searched(log: RunLog, **parts):
    return asyncio.run(search(PROBLEM, parts_of(log, **parts)))


def outline(view) -> list[tuple[str, int | None, str]]:
    return [(attempt.ask.role, attempt.ask.parent, attempt.outcome) for attempt in view.attempts]


CONFIGS = {"one slot": CONFIG, "lockstep": CONFIG.model_copy(update={"slots": 3, "lockstep": True})}


class Ended(NamedTuple):
    """A search that was killed now and then, at its end."""

    view: object
    events: list
    asked: list
    """Digests of all requests that the provider answered, in all processes."""
    deaths: int
    folder: Path

    @property
    def answered_once(self):
        """Whether each attempt took one answer."""
        replied = [event.attempt for event in self.events if event.kind == "replied"]
        return sorted(replied) == [attempt.number for attempt in self.view.attempts]

    @property
    def replays(self):
        """Whether the run, done again from its log alone, gives the same log."""
        with RunLog.open(self.folder) as log:
            return replay(log, self.folder.with_name(f"{self.folder.name}-again")).digest == log.digest()


class Counting(Scripted):
    """Writes each answer that it gives into a file, so that answers are counted over several processes."""

    def __init__(self, ledger):
        super().__init__({number: answer for number, answer in Scripted().answers.items()})
        self.ledger = ledger

    async def complete(self, request, ask, prompt):
        reply = await super().complete(request, ask, prompt)
        with open(self.ledger, "a") as file:
            file.write(f"{request.digest}\n")
        return reply


def run_in_child(folder, ledger, config, calls):
    """Search in a forked process that is killed at its n-th call of a function; how the process ended."""
    child = os.fork()
    if child == 0:
        try:
            left = calls

            def count(frame, event, argument):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            with RunLog.open(folder) as log:
                sys.setprofile(count if calls else None)
                searched(log, provider=Counting(ledger), config=config)
                sys.setprofile(None)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def calls_of_a_whole_search(folder, config):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1

    with new_log(folder) as log:
        sys.setprofile(count)
        view = searched(log, config=config)
        sys.setprofile(None)
    return calls, [attempt.ask for attempt in view.attempts], outline(view)


def killed_searches(base, config, kills):
    """The asks and outcomes of an uninterrupted search; and those of searches that were killed `kills` times in all."""
    calls_of_a_whole_search(base / "first", config)  # what is loaded once would be counted, and is not called again
    calls, asks, ends = calls_of_a_whole_search(base / "whole", config)
    rng, ended = random.Random(7), []
    while sum(one.deaths for one in ended) < kills:
        folder, ledger = base / f"run{len(ended)}", base / f"ledger{len(ended)}"
        new_log(folder).close()
        deaths = 0
        while run_in_child(folder, ledger, config, rng.randrange(1, calls)) == -signal.SIGKILL:
            deaths += 1
        with RunLog.open(folder) as log:
            events = list(log.events(PROBLEM.name))
            ended.append(Ended(fold(PROBLEM.name, events), events, ledger.read_text().split(), deaths, folder))
    return asks, ends, ended
