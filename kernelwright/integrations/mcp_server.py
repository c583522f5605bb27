"""The tools of `agent_tools` over the Model Context Protocol, on standard input and output."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from kernelwright.integrations.agent_tools import AgentTools, ToolRefused, ToolVerdict
from kernelwright.problems import ProblemError
from kernelwright.problems.record.base import first_fault
from kernelwright.prompts import Target
from kernelwright.sandbox.judge.given import shown
from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.pool.judge_pool import JudgingError

EVERY_S = 2.0
"""How often whoever waits is told that it goes on."""
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


class KernelServer(MCPServer[None]):
    """A server that tells wrong arguments in a sentence, as all that is refused."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """What the tool gives. Raises `ToolError`."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"Error executing tool {name}: {_wrong(error.__cause__)}") from error.__cause__
            raise


def _wrong(error: ValidationError) -> str:
    fault = first_fault(error)
    given = error.errors(include_url=False)[0]
    if given["type"] == "missing":
        return f"it needs {fault.key}; give it"
    return f"{fault.key} is {shown(given['input'])}; {fault.said.replace('Input', 'it', 1)}"


def server_of(tools: AgentTools) -> MCPServer[None]:
    """The server of one session; the judge lives as long as it does."""

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
        return await _said(anyio.to_thread.run_sync(tools.problem, problem, size))

    @server.tool(annotations=READS, structured_output=False)
    async def read_prompt(problem: Name, target: Target = "cuda") -> str:
        """The whole prompt for a first draft: contract, hardware, a worked example in the target language."""
        return await _said(anyio.to_thread.run_sync(tools.prompt, problem, target))

    @server.tool(annotations=READS, structured_output=False)
    async def best_so_far(problem: Name, size: Size = None) -> str:
        """The fastest right kernel of a problem so far: its source, and what it was measured at."""
        return await _said(anyio.to_thread.run_sync(tools.best, problem, size))

    @server.tool(annotations=READS)
    async def judge(
        ctx: Context[Any, Any], problem: Name, source: Source = None, path: File = None, size: Size = None
    ) -> CallToolResult:
        """Judge a candidate: is it right, and how fast against the reference? Takes seconds, a first build longer."""
        return _result(await _said(_telling(ctx, tools.judge(problem, source, path, size))))

    @server.tool(annotations=READS)
    async def profile(
        ctx: Context[Any, Any], problem: Name, source: Source = None, path: File = None, size: Size = None
    ) -> CallToolResult:
        """Judge, and say where the time goes: kernels and ncu's counters on a GPU, busy cores on a processor."""
        return _result(await _said(_telling(ctx, tools.judge(problem, source, path, size, profile=True))))

    return server


async def _said(work: Awaitable[T]) -> T:
    try:
        return await work
    except (ToolRefused, ProblemError, JudgingError, ExecutorError) as error:
        raise ToolError(str(error)) from None


async def _telling(ctx: Context[Any, Any], work: Awaitable[ToolVerdict]) -> ToolVerdict:
    """Wait for it, and tell whoever asked for progress that it goes on; whoever cancels takes it back."""
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
