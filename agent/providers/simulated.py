"""`simulated`: a made-up model, which answers immediately, and a made-up judge: for trying out a strategy.

It shows how strategies compare where ideas, failures and noise follow `Assumptions`, and tests the engine under load.
It cannot show how good a strategy is with a real model. `docs/search.md` lists the assumptions with their sources. A
candidate's source holds its properties, and the provider finds its parent in the prompt: a simulated run can be killed,
resumed and replayed like any other.
"""

import asyncio
import json
import math
import random
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from kernelwright.agent.config import ProviderOptions
from kernelwright.agent.log.records import Ask, Reply, Request, Usage
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.providers import Provider, ProviderError
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt
from kernelwright.sandbox.verdict import verdicts

FREE = frozenset({"", "what limits it", "another design"})  # ideas that leave the choice to the model


@dataclass(frozen=True)
class Assumptions:
    """The numbers. Speeds are natural logarithms of the speedup against PyTorch."""

    draft_right: float = 0.55  # chance that a first version of a problem of medium difficulty is correct
    improve_right: float = 0.65  # the same for a change to a correct version
    difficulty_spread: float = 1.5  # standard deviation of a problem's difficulty, in logits of the two above
    repair_right: float = 0.35
    """Mean chance that one repair fixes a failure; the chances of single failures follow a Beta distribution."""
    repair_concentration: float = 3.0
    new_fault: float = 0.2  # chance that a repair that fails leaves another fault, with a chance of its own
    draft_log: float = math.log(0.55)  # a first correct version is slower than PyTorch more often than not
    problem_spread: float = 0.6
    """Between problems: at some nearly every first version is slower than PyTorch, at some nearly none."""
    idea_spread: float = 0.2  # between first versions by different ideas at one problem
    writing_spread: float = 0.15  # between first versions by the same idea
    helps: float = 0.35  # chance that an idea fits a problem at all
    gain: float = 0.40  # mean gain of one that fits
    loss: float = 0.10  # mean loss by one that does not
    interplay: float = 0.10  # spread of an idea's effect over the designs that it can be applied to
    execution: float = 0.08  # spread of the effect over times that it is written down
    ignores: float = 0.15  # chance that the model does something else than it is asked
    room: tuple[float, float] = (math.log(1.5), math.log(8.0))
    """The roofline lies between these speedups; gains shrink in proportion to the remaining distance."""
    noise: float = 0.02  # spread of a measured speedup; one in twenty is off by five times that


STANDARD = Assumptions()


@dataclass(frozen=True)
class SimulatedKernel:
    log_speedup: float
    root: str  # the idea of its first version
    ideas: tuple[str, ...] = ()  # the changes on the way to it
    mends: float | None = None  # chance that a repair fixes it; None where it is correct
    step: int = 0  # the number of repairs, so that a repair that changes nothing else is another source


@dataclass(frozen=True)
class Landscape:
    """One made-up problem. The same seed gives the same problem, whatever is tried on it and in whatever order."""

    seed: int
    assumptions: Assumptions = STANDARD

    def draft(self, idea: str, rng: random.Random) -> SimulatedKernel:
        known = self.assumptions
        quality = self._drawn("draft", self._meant(idea, rng)).gauss(0, known.idea_spread)
        speed = min(self.level + quality + rng.gauss(0, known.writing_spread), self.ceiling)
        return self._written(SimulatedKernel(speed, root=idea), known.draft_right, rng)

    def improve(self, parent: SimulatedKernel, idea: str, rng: random.Random) -> SimulatedKernel:
        known = self.assumptions
        meant = self._meant(idea, rng)
        again = meant in parent.ideas
        effect = (0.0 if again else self._effect(meant, parent.root)) + rng.gauss(0, known.execution)
        left = max(0.0, self.ceiling - parent.log_speedup) / max(1e-9, self.ceiling - self.level)
        speed = parent.log_speedup + (effect * min(1.0, left) if effect > 0 else effect)
        child = replace(parent, log_speedup=min(speed, self.ceiling), ideas=(*parent.ideas, meant))
        return self._written(child, known.improve_right, rng)

    def repair(self, parent: SimulatedKernel, rng: random.Random) -> SimulatedKernel:
        assert parent.mends is not None, "what is right needs no repair"
        mends: float | None = parent.mends
        if rng.random() < parent.mends:
            mends = None
        elif rng.random() < self.assumptions.new_fault:
            mends = self._chance(rng)
        return replace(parent, mends=mends, step=parent.step + 1)

    def measured(self, kernel: SimulatedKernel, rng: random.Random) -> float:
        spread = self.assumptions.noise * (5 if rng.random() < 0.05 else 1)
        return math.exp(kernel.log_speedup + rng.gauss(0, spread))

    @cached_property
    def ceiling(self) -> float:
        return self._drawn("ceiling").uniform(*self.assumptions.room)

    @cached_property
    def level(self) -> float:
        known = self.assumptions
        return min(self._drawn("level").gauss(known.draft_log, known.problem_spread), self.ceiling)

    @cached_property
    def difficulty(self) -> float:
        """In logits; above 0 a candidate is correct less often."""
        return self._drawn("difficulty").gauss(0, self.assumptions.difficulty_spread)

    def _effect(self, idea: str, root: str) -> float:
        known, drawn = self.assumptions, self._drawn("idea", idea)
        fits = drawn.random() < known.helps
        own = drawn.expovariate(1 / known.gain) if fits else -drawn.expovariate(1 / known.loss)
        return own + self._drawn("interplay", idea, root).gauss(0, known.interplay)

    def _meant(self, idea: str, rng: random.Random) -> str:
        """Give the idea that the model follows: one of its own where it is free, or ignores the prompt."""
        if idea in FREE or rng.random() < self.assumptions.ignores:
            return f"own {rng.randrange(20)}"
        return idea

    def _written(self, kernel: SimulatedKernel, chance: float, rng: random.Random) -> SimulatedKernel:
        logit = math.log(chance / (1 - chance)) - self.difficulty
        right = rng.random() < 1 / (1 + math.exp(-logit))
        return kernel if right else replace(kernel, mends=self._chance(rng))

    def _chance(self, rng: random.Random) -> float:
        mean, weight = self.assumptions.repair_right, self.assumptions.repair_concentration
        return rng.betavariate(mean * weight, (1 - mean) * weight)

    def _drawn(self, *what: str) -> random.Random:
        return random.Random(f"{self.seed}/{'/'.join(what)}")


UNREAL = verdicts.ProblemStatus(status="weak", why=("simulated: nothing was run",))
"""Keeps made-up speedups out of every ranking."""
EVIDENCE = verdicts.Evidence(
    jail=(), seconds={}, authenticity=verdicts.Authenticity(label="unknown"), problem_status=UNREAL, versions={}
)
PAIRS = 4
_KERNEL = re.compile(r"^KERNEL = '(.*)'$", re.MULTILINE)


def landscape_of(problem: str, seed: int, assumptions: Assumptions) -> Landscape:
    return Landscape(random.Random(f"{seed}/{problem}").randrange(2**32), assumptions)


def source_of(kernel: SimulatedKernel) -> str:
    said = json.dumps(asdict(kernel))
    return f"import torch\n\nKERNEL = '{said}'\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def kernel_in(text: str) -> SimulatedKernel | None:
    found = _KERNEL.search(text)
    if found is None:
        return None
    said = json.loads(found[1])
    return SimulatedKernel(**said | {"ideas": tuple(said["ideas"])})


@dataclass
class SimulatedProvider:
    """Answers after a time drawn from `latency_s`, in the event loop's seconds."""

    seed: int = 0
    assumptions: Assumptions = STANDARD
    latency_s: tuple[float, float] = (5.0, 60.0)
    name: str = "simulated"

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        rng = random.Random(f"{self.seed}/{ask.problem}/{request.digest}")
        latency = rng.uniform(*self.latency_s)
        await asyncio.sleep(latency)
        kernel = self._kernel(ask, prompt, rng)
        usage = Usage(input_tokens=prompt.tokens, output_tokens=rng.randrange(1000, 9000))
        text = f"```python\n{source_of(kernel)}```\n"
        return Reply(text=text, model=ask.model, usage=usage, provider=self.name, latency_s=latency)

    def _kernel(self, ask: Ask, prompt: Prompt, rng: random.Random) -> SimulatedKernel:
        landscape = landscape_of(ask.problem, self.seed, self.assumptions)
        if ask.role == "propose":
            return landscape.draft(ask.idea, rng)
        shown = next((section.text for section in prompt.sections if section.name == "parent"), "")
        parent = kernel_in(shown)
        if parent is None or ask.role not in {"repair", "improve"}:
            raise ProviderError(f"the simulated model cannot answer to role {ask.role!r}; ask it for candidates alone")
        return landscape.repair(parent, rng) if ask.role == "repair" else landscape.improve(parent, ask.idea, rng)


@dataclass
class SimulatedEvaluator:
    """Judges simulated candidates, `slots` at a time, each for `seconds` of the loop's time."""

    seed: int = 0
    assumptions: Assumptions = STANDARD
    slots: int = 1
    seconds: float = 10.0
    busy_s: float = 0.0  # slot seconds that were spent judging
    _free: asyncio.Semaphore | None = field(default=None, repr=False)

    async def evaluate(
        self, problem: Problem, candidate: verdicts.Candidate, *, fresh: bool = False, best_speedup: float | None = None
    ) -> verdicts.Verdict:
        """The verdict; another one for the same candidate where `fresh`."""
        self._free = self._free or asyncio.Semaphore(self.slots)
        async with self._free:
            await asyncio.sleep(self.seconds)
            self.busy_s += self.seconds
        kernel = kernel_in(candidate.source)
        assert kernel is not None, "a simulated candidate says what it is"
        if kernel.mends is not None:
            return verdicts.Failed(stage="check", reason="output 0 differs", log="", evidence=EVIDENCE)
        landscape = landscape_of(problem.name, self.seed, self.assumptions)
        rng = random.Random(f"{self.seed}/{candidate.digest}/{fresh}")
        speedup = landscape.measured(kernel, rng)
        samples = tuple(speedup * (1 + 0.01 * at) for at in range(PAIRS))
        pairing = verdicts.Pairing(baseline="eager", candidate_ms=(1.0,) * PAIRS, baseline_ms=samples)
        return verdicts.Passed(measurement=verdicts.Measurement(pairings=(pairing,), threads=1), evidence=EVIDENCE)

    def release(self, problem: Problem) -> None: ...

    async def measure(self, problem: Problem) -> None: ...

    async def screen(self, problem: Problem, candidates: list[verdicts.Candidate]) -> list[float | None]:
        raise AssertionError("simulated candidates declare no constants")


def provider(options: ProviderOptions, run: RunLog) -> Provider:
    return SimulatedProvider(latency_s=(0.0, 0.0))
