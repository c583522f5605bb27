"""A closer look at one candidate: a call under memcheck, a call under ncu, each in a jailed child that is not timed."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused, Session
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.judge import memcheck, profile
from kernelwright.sandbox.judge.cuda_toolkit import PROFILE, SANITIZE, folders, needed, require_tools
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Look, Memcheck
from kernelwright.sandbox.workfolder import WorkFolder

TOOL_S = 300.0
"""For one run under a tool; a longer one says nothing."""
MEMORY = 4
"""Times the memory of other children: tools keep books of their own."""
CALLED = ("load", "run", "check")
"""Stages in which a candidate's kernels run."""
BAD_RUNS = (ChildGone, ChildLate, Refused, MemoryReadError, Misbehaved)


class Tool(NamedTuple):
    path: str
    command: tuple[str, ...]
    """The words in front of the program's own; `{report}` stands for the file of the report."""
    environment: Mapping[str, str]


class Ran(NamedTuple):
    ended_well: bool
    report: str
    printed: str
    """The last words of the tool and of the program below it; or why there are none."""


class ToolTask(NamedTuple):
    """What `kernelwright_child.gpu_tool` is to do."""

    plan: Mapping[str, object]
    kept: Mapping[str, Values]
    """Values that it maps, by name: `arguments`, `values` and, where there are any, `weights`."""


class Subject(NamedTuple):
    """Whom to look at: a candidate that is built, and the reference whose values it gets."""

    built: Built
    load: Callable[[], Mapping[str, object]]
    """The message of a worker's `load`."""
    reference: Callable[[], ReferenceSession]
    settings: Settings


@contextmanager
def looked_at(subject: Subject) -> Iterator[None]:
    """Judge inside; what is right is then looked at, and what failed on the device, for the reason why.

    What is seen goes into `subject.built.look`. A faulty access fails the stage `check`, or leads the reason of the
    failure that there was. Raises `MachineError` where a tool is missing or does not work here at all.
    """
    settings, built = subject.settings, subject.built
    require_tools(settings.sanitize, settings.profile)
    try:
        yield
    except StageFailed as stop:
        late = isinstance(stop.__context__, ChildLate)  # it would take even longer under a tool
        if settings.sanitize and built.worker is not None and stop.stage in CALLED and not late:
            found = _sanitized(subject)
            if found.state == "found":
                raise StageFailed(stop.stage, f"{found}\n{stop.reason}", stop.log) from None
        raise
    if settings.sanitize:
        found = _sanitized(subject)
        if found.state == "found":
            raise StageFailed("check", str(found), "\n".join(map(str, found.faults)))
    if settings.profile:
        _profiled(subject)


def sanitizer(name: str = "memcheck") -> Tool:
    """Memcheck, racecheck or synccheck of compute-sanitizer. Raises `MachineError` where that is missing."""
    path = needed(SANITIZE)
    return Tool(path, tuple(memcheck.command(path, "{report}", name)), memcheck.ENVIRONMENT)


def _sanitized(subject: Subject) -> Memcheck:
    tool = sanitizer()
    ran = run_call(subject, tool)
    found = memcheck.read(ran.report, ran.ended_well, ran.printed)
    if found.state == "silent" and (why := _fault_of(tool, subject.settings)):
        raise MachineError(f"compute-sanitizer does not work here ({why}); leave {SANITIZE} out, or mend that")
    _note(subject.built, memcheck=found)
    return found


def _profiled(subject: Subject) -> None:
    path = needed(PROFILE)
    tool = Tool(path, tuple(profile.command(path, "{report}")), profile.ENVIRONMENT)
    ran = run_call(subject, tool)
    counters = tuple(profile.read_report(ran.report))
    obstacle = "" if counters else profile.obstacle(f"{ran.report}\n{ran.printed}")
    _note(subject.built, counters=counters, obstacle=obstacle)


def _note(built: Built, **what: object) -> None:
    built.look = (built.look or Look()).model_copy(update=what)


def run_call(subject: Subject, tool: Tool) -> Ran:
    """The candidate's call under a tool; its time counts as part of the check."""
    built, reference = subject.built, subject.reference()
    if built.worker is not None:  # it may still have work on the device
        built.worker.close()
        built.worker = None
    start, seconds = time.perf_counter(), built.seconds
    kept = {"arguments": reference.arguments, "values": reference.draw()}
    if reference.weights.tensors and built.weight_seed is None:
        kept["weights"] = reference.weights
    plan = {
        "trial": False,
        "load": dict(subject.load()),
        "weights": reference.weight_names,
        "precision": reference.problem.precision,
        "gradients": reference.problem.direction != "forward",
    }
    try:
        return run_under(tool, ToolTask(plan, kept), built.folder, subject.settings)
    finally:
        seconds["check"] = seconds.get("check", 0.0) + time.perf_counter() - start


def _fault_of(tool: Tool, settings: Settings) -> str:
    """Why memcheck can not be had on this machine, tried with a program that is right; empty where it can."""
    return _trial(tool.path, tool.command, tuple(tool.environment.items()), settings)


@cache
def _trial(path: str, command: tuple[str, ...], environment: tuple[tuple[str, str], ...], settings: Settings) -> str:
    folder = WorkFolder()
    try:
        ran = run_under(Tool(path, command, dict(environment)), ToolTask({"trial": True}, {}), folder, settings)
    finally:
        folder.close()
    return memcheck.read(ran.report, ran.ended_well, ran.printed).why


def run_under(tool: Tool, call: ToolTask, folder: WorkFolder, settings: Settings) -> Ran:
    """Start the program `kernelwright_child.gpu_tool` below a tool, in a jail, and wait for both."""
    folder.shown = folders(tool.path)
    more = {"memory_bytes": MEMORY * settings.memory_bytes}
    try:
        with Session("worker", folder, settings.model_copy(update=more)) as session:
            session.greet()
            return _asked(session, tool, call, settings)
    except ChildLate:
        return Ran(False, "", f"it did not end within {TOOL_S:.0f} s")
    except BAD_RUNS as error:
        return Ran(False, "", str(error))
    finally:
        folder.shown = ()


def _asked(session: Session, tool: Tool, call: ToolTask, settings: Settings) -> Ran:
    limit = settings.start_timeout_s
    session.ask({"op": "use device"}, limit)
    for name, values in call.kept.items():
        session.ask({"op": "keep", "name": name, "tree": values.tree}, limit, _on_host(values))
    question: dict[str, Any] = {
        "op": "under tool",
        "command": list(tool.command),
        "environment": dict(tool.environment),
        "plan": dict(call.plan) | {"device": "cuda" if settings.gpu else "cpu"},
        "cores": list(settings.cores),
    }
    answer = session.ask(question, TOOL_S)
    return Ran(answer.get("code") == 0, str(answer.get("report", "")), str(answer.get("printed", "")))


def _on_host(values: Values) -> Values:
    return Values(values.tree, tuple(RawTensor.of(raw.tensor().cpu()) for raw in values.tensors))
