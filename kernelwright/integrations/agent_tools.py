"""What a coding agent may ask of the judge: to read a problem and its prompt, to judge, to profile, to see the best.

Every reply is bounded. Files are read below the folder that the server was started in, and nowhere else.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from kernelwright.evals.runs.prompting import first_prompt
from kernelwright.integrations.reward import LONGEST, RewardTerms, feedback, reward
from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem
from kernelwright.problems.record.source import reading_below
from kernelwright.prompts import Target
from kernelwright.prompts.markdown import fenced, trimmed
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.judge.given import is_file_name, shown
from kernelwright.sandbox.machine.identity import needs_device
from kernelwright.sandbox.pool.judge_pool import JudgePool
from kernelwright.sandbox.verdict.report import counted_speedup
from kernelwright.sandbox.verdict.settings import Settings

LONGEST_TEXT = 60_000
"""Characters of a prompt, a reference or a kernel in a reply; some 15,000 tokens."""
LONGEST_SOURCE = 2**20
IN_FLIGHT = 4
SIZES = ("cpu", "gpu")
TERMS = RewardTerms(paid="all")
"""Which operators a candidate may use is the problem's own policy here."""
FACTS = (
    "outcome", "stage", "speedup", "speedup_low", "speedup_high", "comparison", "against", "candidate_ms", "floor_ms",
    "speedup_any", "timing_clock", "launch_bound",
)  # fmt: skip


class ToolRefused(ValueError):
    """What was asked can not be done; one sentence with the remedy, for the agent to read."""


class ToolVerdict(NamedTuple):
    """What came of a source: in words, and the few facts that a program may want."""

    words: str
    facts: dict[str, Any]


class Best(NamedTuple):
    source: str
    report: Mapping[str, Any]
    origin: str

    @property
    def low(self) -> float:
        """The lower end of the speedup's interval, by which kernels are ranked."""
        return counted_speedup(float(self.report["speedup_low"]), self.report["comparison"])


class AgentTools:
    """One agent's session: a judge for each device that is needed, and the best kernels so far. Use it as a context."""

    def __init__(self, folder: Path, run: Path | None = None, server: str | None = None, **chosen: Any) -> None:
        """`run`: one whose best kernels count too. `chosen`: settings; without a device what the source asks for."""
        self.folder, self._run, self._server, self._chosen = folder.resolve(), run, server, chosen
        self._pools: dict[tuple[str, bool], JudgePool] = {}
        self._best: dict[str, Best] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def problems(self) -> str:
        return "\n".join(f"{name}: {load_problem(name).title}" for name in catalog_names())

    def problem(self, name: str, size: str | None = None) -> str:
        found = self._problem(name, size)
        facts = found.model_dump(mode="json", exclude={"source", "origin"}, exclude_none=True)
        return f"{json.dumps(facts)}\n{fenced(trimmed(found.source, LONGEST_TEXT), 'python')}"

    def prompt(self, name: str, target: Target) -> str:
        """What a language model is told that is to write a first draft."""
        size = None if target == "cpp" or name not in catalog_names() else "gpu"
        return trimmed(first_prompt(self._problem(name, size), target).text, LONGEST_TEXT)

    async def judge(
        self, name: str, source: str | None, path: str | None, size: str | None = None, profile: bool = False
    ) -> ToolVerdict:
        text = self._source(source, path)
        device = self._chosen.get("device")
        if device is None:
            language = candidate_of(text.encode(errors="replace").decode()).language
            device = "cuda" if needs_device(language, self._problem(name, size).size) else "cpu"
        problem = self._problem(name, size or ("gpu" if device != "cpu" and name in catalog_names() else None))
        judged = await self._pool_on(device, profile and device != "cpu").judge(problem, text)
        if judged.report is None:
            raise ToolRefused(f"no verdict, and not the candidate's fault: {judged.error}")
        worth = reward(judged.report, TERMS)
        words = feedback(judged.report, worth, LONGEST)
        if worth.value and not worth.is_quarantined:
            words += self._remembered(problem, text, judged.report)
        if profile:
            words += "".join(f"\n{line}" for line in _processor_lines(judged.report))
        return ToolVerdict(words, {key: judged.report.get(key) for key in FACTS} | {"flags": list(worth.flags)})

    def best(self, name: str, size: str | None = None) -> str:
        sizes = SIZES if size is None and name in catalog_names() else (size,)
        shown = [self._shown(problem) for problem in (self._problem(name, one) for one in sizes)]
        return "\n\n".join(filter(None, shown)) or f"nothing right yet for {name}"

    def _shown(self, problem: Problem) -> str:
        found = self._best_of(problem)
        if found is None:
            return ""
        words = feedback(found.report, reward(found.report, TERMS), LONGEST)
        head = f"{problem.name} at size {problem.size}, {found.origin}"
        return f"{head}\n{words}\n{fenced(trimmed(found.source, LONGEST_TEXT), 'python')}"

    def _best_of(self, problem: Problem) -> Best | None:
        return max(
            filter(None, (self._best.get(problem.digest), self._of_run(problem))),
            key=lambda best: best.low,
            default=None,
        )

    def _remembered(self, problem: Problem, source: str, report: Mapping[str, Any]) -> str:
        mine = Best(source, report, "judged in this session")
        best = self._best_of(problem)
        if best is not None and best.low >= mine.low:
            return f"\nthe best so far stays: {best.low:.3g} x at least, this one {mine.low:.3g} x"
        self._best[problem.digest] = mine
        return f"\nthe best so far: {mine.low:.3g} x at least"

    def _of_run(self, problem: Problem) -> Best | None:
        folder = self._run / "best" / problem.name if self._run else None
        if folder is None or not (folder / "verdict.json").is_file():
            return None
        report = json.loads((folder / "verdict.json").read_text())
        if report["problem_digest"] != problem.digest:
            return None
        return Best((folder / "candidate.py").read_text(), report, f"attempt {report['attempt']} of {report['run']}")

    def _source(self, source: str | None, path: str | None) -> str:
        if (source is None) == (path is None):
            raise ToolRefused("give the candidate as one of source and path")
        if source is not None and is_file_name(source):
            raise ToolRefused(f"the source is {shown(source)}, the name of a file; give that as path")
        text = source if source is not None else self._text(str(path))
        if len(text) > LONGEST_SOURCE:
            raise ToolRefused(f"the source has {len(text)} characters, and at most {LONGEST_SOURCE} are judged")
        return text

    def _text(self, path: str) -> str:
        found = self._below(path)
        if found is None or found.suffix != ".py" or not found.is_file():
            raise ToolRefused(f"{path!r} is no .py file below {self.folder}; give one, or its text as source")
        return found.read_text(errors="replace")

    def _below(self, path: str) -> Path | None:
        try:
            found = (self.folder / path).resolve()
            return found if found.is_relative_to(self.folder) and found.exists() else None
        except (OSError, ValueError):  # too long, or with a null byte: no path can be this
            return None

    def _problem(self, name: str, size: str | None) -> Problem:
        file, mark, part = name.partition("::")
        try:
            if name in catalog_names():
                return load_problem(name, size)
            found = self._below(file)
            if found is None:
                raise ToolRefused(f"{name!r} is no name of list_problems and no file below {self.folder}; give one")
            with reading_below(self.folder):
                return load_problem(f"{found}{mark}{part}", size)
        except ProblemError as error:
            raise ToolRefused(str(error)) from None

    def _pool_on(self, device: str, profile: bool) -> JudgePool:
        if (device, profile) not in self._pools:
            chosen = {"effort": "search"} | self._chosen | {"device": device, "profile": profile}
            pool = JudgePool(IN_FLIGHT, Settings.model_validate(chosen), self._server)
            self._pools[device, profile] = pool.open()
        return self._pools[device, profile]


def _processor_lines(report: Mapping[str, Any]) -> list[str]:
    if report["outcome"] == "failed" or report["device"] != "cpu":
        return []
    measured, lines = report["measurement"], []
    walls = {"candidate": report["candidate_ms"], "eager": report["baselines_ms"].get("eager")}
    for side, wall_ms in walls.items():
        if wall_ms and measured[f"{side}_cpu_ms"]:
            used_ms = median(measured[f"{side}_cpu_ms"])
            lines.append(f"{side}: {used_ms:.3g} ms of processor time a call, {used_ms / wall_ms:.2g} cores busy")
    return [*lines, f"threads that both have: {measured['threads']}"]
