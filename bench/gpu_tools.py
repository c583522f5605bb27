"""memcheck and ncu around candidates in the jail: a faulty one is caught, an honest one passes and is profiled.

`python -m bench gpu_tools`; about a minute. Where a tool says nothing, it is tried with less and less of a jail around
it, so that the layer at fault shows. `KERNELWRIGHT_BENCH=memcheck` or `ncu` picks one of the two.
"""

import time

from bench.chosen import chosen
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.sandbox.judge import memcheck, profile
from kernelwright.sandbox.judge.cuda_toolkit import program
from kernelwright.sandbox.judge.tools import Tool, ToolTask, run_under
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.verdicts import Failed, Passed
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import driver
from tests.gpu.faulty import OVERRUN, PROBLEM
from tests.gpu.harness import SETTINGS, Judges
from tests.gpu.honest import HONEST

QUICK = SETTINGS.model_copy(update={"worker_pairs": 1, "min_pairs": 4, "max_pairs": 4})
WEAKER = {"all of it": {}, "no namespaces": {"jail_without": ("namespaces",)}, "none": {"jail": "off"}}
"""Jails from the usual one to none."""


def run() -> Report:
    """A few lines for each candidate; a tool that does not do what it should is tried out."""
    if driver.device_count() == 0:
        return NO_DEVICE
    tools = chosen(["memcheck", "ncu"])
    both = QUICK.model_copy(update={"sanitize": "memcheck" in tools, "profile": "ncu" in tools})
    wrong = []
    with Judges(both) as judges:
        honest = judged(judges, "honest", HONEST["triton_odd_sizes"].source)
        if both.sanitize and not (is_clean(honest) and is_caught(judged(judges, "overrun", OVERRUN))):
            wrong.append("memcheck")
    if honest is None and both.profile:
        with Judges(QUICK.model_copy(update={"profile": True})) as judges:
            honest = judged(judges, "profiled", HONEST["triton_odd_sizes"].source)
    if both.profile and not is_profiled(honest):
        wrong.append("ncu")
    for tool in (memcheck, profile):
        if {memcheck: "memcheck", profile: "ncu"}[tool] in wrong:
            try_out(tool)
    return Report(f"tools that do not do what they should: {', '.join(wrong) or 'none'}", not wrong)


def judged(judges, name, source):
    """The verdict, told in a few lines; None where the machine can not do it."""
    start = time.perf_counter()
    try:
        verdict = judges.judged(PROBLEM, source)
    except MachineError as error:
        print(f"  {name}: {time.perf_counter() - start:.1f} s, the machine can not: {error}", flush=True)
        return None
    print(f"  {name}: {time.perf_counter() - start:.1f} s, {verdict.outcome}; seconds {verdict.evidence.seconds}")
    if isinstance(verdict, Failed):
        print(f"    {verdict.stage}: " + "\n    ".join(verdict.reason.splitlines()))
    look = verdict.evidence.look
    if look is not None:
        print("\n".join(f"    {line}" for text in look.lines() for line in text.splitlines()))
        print(f"    memcheck: {look.memcheck or 'not asked for'}", flush=True)
    return verdict


def is_caught(verdict):
    """Whether it failed at check, with kernel, access and place in the first line."""
    told = verdict.reason.splitlines()[0] if isinstance(verdict, Failed) and verdict.stage == "check" else ""
    return all(word in told for word in ("Invalid __global__ write of size", "overrun", "out of bounds", "bytes after"))


def is_clean(verdict):
    """Whether it passed and memcheck saw nothing."""
    return isinstance(verdict, Passed) and verdict.evidence.look.memcheck.state == "clean"


def is_profiled(verdict):
    """Whether there are counters, or the reason why not is a lack of permission, explained."""
    if not isinstance(verdict, Passed):
        return False
    look = verdict.evidence.look
    return bool(look.kernels) and (bool(look.counters) or "NVreg_RestrictProfilingToAdminUsers" in look.obstacle)


def try_out(tool):
    """The tool around a small program that is right, in jails from the usual one to none: its own words."""
    path = program(tool.PROGRAM)
    if path is None:
        print(f"  {tool.PROGRAM} is not installed")
        return
    print(f"  {tool.PROGRAM} is {path}")
    for name, less in WEAKER.items():
        folder, start = WorkFolder(), time.perf_counter()
        ran = run_under(
            Tool(path, tuple(tool.command(path, "{report}")), tool.ENVIRONMENT),
            ToolTask({"trial": True}, {}),
            folder,
            QUICK.model_copy(update=less),
        )
        folder.close()
        print(f"  jail: {name}; {time.perf_counter() - start:.1f} s; ended well: {ran.ended_well}")
        print(f"    report: {ran.report[-1500:]!r}\n    printed: {ran.printed[-1500:]!r}", flush=True)
