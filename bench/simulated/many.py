"""Many simulated problems through the real engine and a real log: does it keep the judge busy, and forget nothing?"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from bench.simulated.clock import run_simulated
from kernelwright.agent.briefs import BriefMaker
from kernelwright.agent.config import SearchConfig
from kernelwright.agent.engine import Parts
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.providers.simulated import SimulatedEvaluator, SimulatedProvider
from kernelwright.agent.scheduler import Scheduler
from kernelwright.agent.strategies import load_strategy
from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.prompts import TargetVersions, cpu_sheet

SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


class Load(Record):
    """How it went."""

    attempts: int
    events: int
    simulated_s: float
    busy: float
    """The share of the judge's slots that were at work, from the first moment to the last."""
    memory_mb: tuple[float, ...]
    """The process's largest memory so far, after each tenth of the problems."""


@dataclass
class Notes:
    """Takes notes while the run goes on."""

    step: int
    ended: int = 0
    memory_mb: list[float] = field(default_factory=list)

    def end(self, problem: Problem) -> None:
        """One more problem is done."""
        self.ended += 1
        if self.ended % self.step == 0:
            self.memory_mb.append(_largest_mb())


def run_many(folder: Path, problems: int, config: SearchConfig, judge_slots: int = 4) -> Load:
    """Search `problems` simulated problems in a new run in `folder`."""
    asked = [
        Problem(name=f"made_up_{number}", title="Softmax", family="simulated", size="cpu", source=SOURCE)
        for number in range(problems)
    ]
    setting = Setting(config={}, device="simulated", versions={})
    evaluator = SimulatedEvaluator(slots=judge_slots)
    notes = Notes(step=max(1, problems // 10))
    with RunLog.create(folder, asked, setting) as log:
        parts = Parts(
            strategy=load_strategy(config.strategy, config),
            provider=SimulatedProvider(),
            evaluator=evaluator,
            log=log,
            config=config,
            brief_for=BriefMaker(cpu_sheet("simulated", 2, [], {}), TargetVersions(), log),
        )
        batch = Scheduler(log, config, lambda problem: parts, notes.end)
        simulated_s = run_simulated(_timed(batch, asked))
        kinds = [event.kind for event in log.events()]
    return Load(
        attempts=kinds.count("asked"),
        events=len(kinds),
        simulated_s=simulated_s,
        busy=evaluator.busy_s / (judge_slots * simulated_s),
        memory_mb=tuple(notes.memory_mb),
    )


def _largest_mb() -> float:
    """The largest memory of this program so far; `getrusage` would take over that of the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def _timed(batch: Scheduler, problems: list[Problem]) -> float:
    await batch.search(problems)
    return asyncio.get_running_loop().time()
