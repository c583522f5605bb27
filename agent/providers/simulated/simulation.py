"""The landscape behind the engine's own interfaces: a provider that writes simulated candidates and a judge of them.

A candidate's source carries what it is, and the provider finds its parent in the prompt, so that nothing is known
beside the record: a simulated run can be killed, resumed and replayed like any other.
"""

import asyncio
import json
import random
import re
from dataclasses import asdict, dataclass, field

from kernelwright.agent.log.records import Ask, Reply, Request, Usage
from kernelwright.agent.providers.provider import ProviderError
from kernelwright.agent.providers.simulated.landscape import STANDARD, Assumptions, Landscape, SimulatedKernel
from kernelwright.problems import Problem
from kernelwright.prompts import Prompt
from kernelwright.sandbox.verdict.verdicts import (
    Authenticity,
    Candidate,
    Evidence,
    Failed,
    Measurement,
    Pairing,
    Passed,
    ProblemStatus,
    Verdict,
)

UNREAL = ProblemStatus(status="weak", why=("simulated: nothing was run",))
"""Keeps made-up speedups out of every ranking."""
EVIDENCE = Evidence(jail=(), seconds={}, authenticity=Authenticity(label="unknown"), problem_status=UNREAL, versions={})
PAIRS = 4
_KERNEL = re.compile(r"^KERNEL = '(.*)'$", re.MULTILINE)


def landscape_of(problem: str, seed: int, assumptions: Assumptions) -> Landscape:
    """The made-up problem of that name."""
    return Landscape(random.Random(f"{seed}/{problem}").randrange(2**32), assumptions)


def source_of(kernel: SimulatedKernel) -> str:
    """A candidate that says what it is."""
    said = json.dumps(asdict(kernel))
    return f"import torch\n\nKERNEL = '{said}'\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def kernel_in(text: str) -> SimulatedKernel | None:
    """The simulated candidate in a source or a prompt."""
    found = _KERNEL.search(text)
    if found is None:
        return None
    said = json.loads(found[1])
    return SimulatedKernel(**said | {"ideas": tuple(said["ideas"])})


@dataclass
class SimulatedProvider:
    """Answers after a time drawn from `latency_s`, in the loop's own seconds."""

    seed: int = 0
    assumptions: Assumptions = STANDARD
    latency_s: tuple[float, float] = (5.0, 60.0)
    name: str = "simulated"

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        rng = random.Random(f"{self.seed}/{ask.problem}/{request.digest}")
        latency = rng.uniform(*self.latency_s)
        await asyncio.sleep(latency)
        kernel = self._kernel(ask, prompt, rng)
        tokens = {"input_tokens": prompt.tokens, "output_tokens": rng.randrange(1000, 9000)}
        return Reply(
            text=f"```python\n{source_of(kernel)}```\n",
            finish_reason="stop",
            model=ask.model,
            usage=Usage(**tokens),
            provider=self.name,
            provider_request_id=None,
            latency_s=latency,
        )

    def _kernel(self, ask: Ask, prompt: Prompt, rng: random.Random) -> SimulatedKernel:
        landscape = landscape_of(ask.problem, self.seed, self.assumptions)
        if ask.role == "propose":
            return landscape.draft(ask.idea, rng)
        shown = next((section.text for section in prompt.sections if section.name == "parent"), "")
        parent = kernel_in(shown)
        if parent is None or ask.role not in {"repair", "improve"}:
            raise ProviderError(f"the simulated model can not answer to role {ask.role!r}; ask it for candidates alone")
        return landscape.repair(parent, rng) if ask.role == "repair" else landscape.improve(parent, ask.idea, rng)


@dataclass
class SimulatedEvaluator:
    """Judges simulated candidates, `slots` at a time, each for `seconds` of the loop's time."""

    seed: int = 0
    assumptions: Assumptions = STANDARD
    slots: int = 1
    seconds: float = 10.0
    busy_s: float = 0.0
    """Slot seconds that were spent judging."""
    _turn: asyncio.Semaphore | None = field(default=None, repr=False)

    async def evaluate(
        self, problem: Problem, candidate: Candidate, *, fresh: bool = False, beat: float | None = None
    ) -> Verdict:
        """The verdict; another one for the same candidate where `fresh`."""
        self._turn = self._turn or asyncio.Semaphore(self.slots)
        async with self._turn:
            await asyncio.sleep(self.seconds)
            self.busy_s += self.seconds
        kernel = kernel_in(candidate.source)
        assert kernel is not None, "a simulated candidate says what it is"
        if kernel.mends is not None:
            return Failed(stage="check", reason="output 0 differs", log="", evidence=EVIDENCE)
        landscape = landscape_of(problem.name, self.seed, self.assumptions)
        rng = random.Random(f"{self.seed}/{candidate.digest}/{fresh}")
        speedup = landscape.measured(kernel, rng)
        samples = tuple(speedup * (1 + 0.01 * at) for at in range(PAIRS))
        pairing = Pairing(baseline="eager", candidate_ms=(1.0,) * PAIRS, baseline_ms=samples)
        return Passed(measurement=Measurement(pairings=(pairing,), threads=1), evidence=EVIDENCE)

    def release(self, problem: Problem) -> None:
        """Nothing is held for a problem."""

    async def measure(self, problem: Problem) -> None:
        """See `Evaluator`: nothing is run, so there are no times."""

    async def screen(self, problem: Problem, candidates: list[Candidate]) -> list[float | None]:
        """Simulated candidates declare no constants, so none is ever screened."""
        raise AssertionError("simulated candidates declare no constants")
