"""The judge as tools of a coding agent, over the Model Context Protocol on standard input and output.

An agent reads a problem and its prompt, judges, profiles and sees the best kernel. Every reply is bounded. Files are
read below the folder that the server was started in, and nowhere else.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from kernelwright.evals.runs import first_prompt
from kernelwright.integrations.reward import LONGEST, RewardTerms, feedback, reward
from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem
from kernelwright.problems.problem import first_fault
from kernelwright.problems.source import reading_below
from kernelwright.prompts import Target
from kernelwright.prompts.rendering import fenced, trimmed
from kernelwright.sandbox.authenticity.scan import candidate_of, is_file_name, shown
from kernelwright.sandbox.machine import usual_device
from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.pool.judge_pool import JudgePool, JudgingError
from kernelwright.sandbox.verdict.report import counted_speedup
from kernelwright.sandbox.verdict.settings import JudgeSettings

LONGEST_TEXT = 60_000
"""Characters of a prompt, a reference or a kernel in a reply; some 15,000 tokens."""
LONGEST_SOURCE = 2**20
CONCURRENCY = 4
SIZES = ("cpu", "gpu")
TERMS = RewardTerms(paid="all")
"""The operators that a candidate may use are the problem's own policy here."""
FACTS = (
    "outcome", "stage", "speedup", "speedup_low", "speedup_high", "comparison", "against", "candidate_ms", "floor_ms",
    "speedup_any", "timing_clock", "launch_bound",
)  # fmt: skip
EVERY_S = 2.0
"""Seconds between two reports of progress."""
INSTRUCTIONS = """\
A judge of kernels: it builds a candidate in a jail, compares it with a reference on inputs that it draws itself, and
times both in turn. A candidate is one Python file that defines `ModelNew` in the place of the reference's `Model`.
- Only a verdict of `judge` says that a kernel is right or fast. Timings of your own, and those of `profile`, do not.
- The speedup stands with its 95 % interval, against the fastest baseline. A change within the interval is no change.
  One that is `too_noisy` or `unconfirmed` is no gain.
- What is flagged is no win: say so, and find out why. Never work around the judge; it looks for that.
- A problem's operators say what may be called: `custom-only` counts kernels of the candidate's own alone.
"""
Name = Annotated[str, Field(description="A problem: a name of list_problems, or a .py file below the server's folder.")]
Size = Annotated[str | None, Field(description="Of a catalog problem: cpu or gpu; by default what fits the source.")]
Source = Annotated[str | None, Field(description="The candidate's text; or give path.")]
File = Annotated[str | None, Field(description="A .py file below the server's folder that holds the candidate.")]
T = TypeVar("T")
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


class ToolRefused(ValueError):
    """A refused request; one sentence with the remedy, for the agent to read."""


class ToolVerdict(NamedTuple):
    """The verdict on a source: in words, and the few facts that a program may want."""

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
        """`run`: one whose best kernels count too. `chosen`: settings; without a device that of the source's language.

        `server`: the address of a service that judges in place of processes here.
        """
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
        """Return the prompt for a first draft, as a language model reads it."""
        size = None if target == "cpp" or name not in catalog_names() else "gpu"
        return trimmed(first_prompt(self._problem(name, size), target).text, LONGEST_TEXT)

    async def judge(
        self, name: str, source: str | None, path: str | None, size: str | None = None, profile: bool = False
    ) -> ToolVerdict:
        text = self._source(source, path)
        device = self._chosen.get("device")
        if device is None:
            language = candidate_of(text.encode(errors="replace").decode()).language
            device = usual_device(language, self._problem(name, size).size)
        problem = self._problem(name, size or ("gpu" if device != "cpu" and name in catalog_names() else None))
        judged = await self._pool_on(device, profile).judge(problem, text)
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
        parts = []
        for one in SIZES if size is None and name in catalog_names() else (size,):
            problem = self._problem(name, one)
            if (found := self._best_of(problem)) is not None:
                words = feedback(found.report, reward(found.report, TERMS), LONGEST)
                head = f"{problem.name} at size {problem.size}, {found.origin}"
                parts.append(f"{head}\n{words}\n{fenced(trimmed(found.source, LONGEST_TEXT), 'python')}")
        return "\n\n".join(parts) or f"nothing right yet for {name}"

    def _best_of(self, problem: Problem) -> Best | None:
        """Return the best kernel of this session or of the run."""
        found = [self._best[problem.digest]] if problem.digest in self._best else []
        folder = self._run / "best" / problem.name if self._run else None
        if folder is not None and (folder / "verdict.json").is_file():
            report = json.loads((folder / "verdict.json").read_text())
            if report["problem_digest"] == problem.digest:
                origin = f"attempt {report['attempt']} of {report['run']}"
                found.append(Best((folder / "candidate.py").read_text(), report, origin))
        return max(found, key=lambda best: best.low, default=None)

    def _remembered(self, problem: Problem, source: str, report: Mapping[str, Any]) -> str:
        mine = Best(source, report, "judged in this session")
        best = self._best_of(problem)
        if best is not None and best.low >= mine.low:
            return f"\nthe best so far stays: {best.low:.3g} x at least, this one {mine.low:.3g} x"
        self._best[problem.digest] = mine
        return f"\nthe best so far: {mine.low:.3g} x at least"

    def _source(self, source: str | None, path: str | None) -> str:
        if (source is None) == (path is None):
            raise ToolRefused("give the candidate as one of source and path")
        if source is not None and is_file_name(source):
            raise ToolRefused(f"the source is {shown(source)}, the name of a file; give that as path")
        text = source
        if text is None:
            found = self._below(str(path))
            if found is None or found.suffix != ".py" or not found.is_file():
                raise ToolRefused(f"{path!r} is no .py file below {self.folder}; give one, or its text as source")
            text = found.read_text(errors="replace")
        if len(text) > LONGEST_SOURCE:
            raise ToolRefused(f"the source has {len(text)} characters, and at most {LONGEST_SOURCE} are judged")
        return text

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
            self._pools[device, profile] = JudgePool(
                CONCURRENCY, JudgeSettings.model_validate(chosen), self._server
            ).open()
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


class KernelServer(MCPServer[None]):
    """A server that refuses wrong arguments in a sentence, as it does all else."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. Raises `ToolError`."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            fault, given = first_fault(error.__cause__), error.__cause__.errors(include_url=False)[0]
            said = f"{fault.key} is {shown(given['input'])}; {fault.said.replace('Input', 'it', 1)}"
            wrong = f"it needs {fault.key}; give it" if given["type"] == "missing" else said
            raise ToolError(f"Error executing tool {name}: {wrong}") from error.__cause__


def server_of(tools: AgentTools) -> MCPServer[None]:
    """Return the server of one session; the judge lives as long as it does."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        async with tools:
            yield

    server = KernelServer(
        "kernelwright",
        instructions=INSTRUCTIONS,
        version=version("kernelwright"),
        lifespan=lifespan,
        log_level="WARNING",
    )

    @server.tool(annotations=READS, structured_output=False)
    async def list_problems() -> str:
        """The problems that ship, by name, with their titles."""
        return await anyio.to_thread.run_sync(tools.problems)

    @server.tool(annotations=READS, structured_output=False)
    async def read_problem(problem: Name, size: Size = None) -> str:
        """A problem: its reference program, and by which rules a candidate is judged (precision, operators, values)."""
        return await _answer(anyio.to_thread.run_sync(tools.problem, problem, size))

    @server.tool(annotations=READS, structured_output=False)
    async def read_prompt(problem: Name, target: Target = "cuda") -> str:
        """The whole prompt for a first draft: contract, hardware, a worked example in the target language."""
        return await _answer(anyio.to_thread.run_sync(tools.prompt, problem, target))

    @server.tool(annotations=READS, structured_output=False)
    async def best_so_far(problem: Name, size: Size = None) -> str:
        """The fastest correct kernel of a problem so far: its source, and what it was measured at."""
        return await _answer(anyio.to_thread.run_sync(tools.best, problem, size))

    @server.tool(annotations=READS)
    async def judge(
        ctx: Context[Any, Any], problem: Name, source: Source = None, path: File = None, size: Size = None
    ) -> CallToolResult:
        """Judge a candidate: is it right, and how fast against the reference? Takes seconds, a first build longer."""
        return _result(await _answer(_with_progress(ctx, tools.judge(problem, source, path, size))))

    @server.tool(annotations=READS)
    async def profile(
        ctx: Context[Any, Any], problem: Name, source: Source = None, path: File = None, size: Size = None
    ) -> CallToolResult:
        """Judge, and say where the time goes: by kernels and ncu's counters, or by busy cores and machine code."""
        return _result(await _answer(_with_progress(ctx, tools.judge(problem, source, path, size, profile=True))))

    return server


async def _answer(work: Awaitable[T]) -> T:
    try:
        return await work
    except (ToolRefused, ProblemError, JudgingError, ExecutorError) as error:
        raise ToolError(str(error)) from None


async def _with_progress(ctx: Context[Any, Any], work: Awaitable[ToolVerdict]) -> ToolVerdict:
    """Wait for it, and report progress to a client that asked for it; where the client cancels, the work ends."""
    task, seconds = asyncio.ensure_future(work), 0.0
    try:
        while not task.done():
            await ctx.report_progress(seconds, message=f"judging, {seconds:.0f} s")
            await asyncio.wait({task}, timeout=EVERY_S)
            seconds += EVERY_S
        return task.result()
    finally:
        task.cancel()


def _result(found: ToolVerdict) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=found.words)], structured_content=found.facts)
