"""Tools of the CUDA toolkit around a candidate's call: compute-sanitizer and ncu.

Each runs in a jailed child that is not timed. Its report never decides how fast a candidate is.
"""

import csv
import io
import math
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import BAD_RUNS, Session
from kernelwright.sandbox.jail.process import ChildLate
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.machine import CUDA_TOOLS, PROFILE, SANITIZE, require_closer_look, tool_of, tool_path
from kernelwright.sandbox.tensors import RawTensor, Values
from kernelwright.sandbox.verdict.diagnoses import COUNTERS, LONGEST_NAME, base_name
from kernelwright.sandbox.verdict.errors import MachineError, StageFailed
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import (
    MOST_FAULTS,
    MOST_KERNELS,
    KernelFacts,
    KernelTime,
    Look,
    MachineCode,
    Memcheck,
    MemoryFault,
)
from kernelwright.sandbox.workfolder import WorkFolder

WHOLE = "/opt/nvidia/nsight-compute"
"""The target of `ncu` in a toolkit's `bin`, which is a link or a script."""


def folders(path: str) -> tuple[str, ...]:
    """Return the folders that a program needs: its real one, and that of Nsight Compute for its script."""
    real = Path(path).resolve()
    top = real.parent.parent if real.parent.name == "bin" else real.parent
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where the user has no account
    # Never show the root or a user's home for one program.
    own = str(real) if top in (Path("/"), home, *home.parents) else str(top)
    return (own, WHOLE) if os.path.isdir(WHOLE) else (own,)  # noqa: PTH112


MARK = "========="
FOUND_CODE = 77
PRINTED = 20
PADDING_BYTES = 4096
"""Bytes between allocations, so that an access beyond one of them is in none."""
SANITIZER_ENVIRONMENT = {
    # Each tensor must be a separate allocation, or an access beyond it is within torch's large block.
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    # A jailed child has no other sockets.
    "NV_COMPUTE_SANITIZER_LOCAL_CONNECTION_OVERRIDE": "uds",
}
WIDEST = 200

_HEADING = re.compile(
    r"Invalid (?:__\w+__|address|access|pointer|bulk|cp\.async|remote)\b.*|Malloc/Free error.*|Fatal UVM GPU fault.*"
    r"|(?:Stack overflow|Illegal instruction|Misaligned|Out-of-range|Invalid PC)\b.*"
)
_AT = re.compile(r"at (?:(?P<kernel>.+?)\+)?0x[0-9a-f]+(?: in (?P<where>.+))?")
_LINE = re.compile(r"in (\S+:\d+)")
_BY = re.compile(r"by (thread \([\d,]+\) in block \([\d,]+\))")
_IS = re.compile(r"(?:Address|Access (?:at|to)) 0x[0-9a-f]+ is (.+)")
_AND_IS = re.compile(r"and is (.+? nearest allocation)(?: at 0x[0-9a-f]+)?(?: of size ([\d,]+) bytes)?")
_FRAME = re.compile(r"Device Frame: ?(?P<kernel>.+?)(?:\+0x[0-9a-f]+| \[0x[0-9a-f]+\])(?: in (?P<where>.+))?")
_OLD_PLACE = re.compile(r"(?P<where>\S+:\d+):(?P<kernel>.+)")
_SUMMARY = re.compile(r"ERROR SUMMARY: ([\d,]+) errors?$")
_HAZARDS = re.compile(r"(?:RACECHECK|ERROR) SUMMARY: ([\d,]+) (hazard|error)s?\b")


def sanitizer_command(path: str, report: str, tool: str = "memcheck") -> list[str]:
    """Make the command prefix by which a program runs under memcheck, racecheck or synccheck with a report file.

    Errors that calls of the CUDA library return are left out: torch causes some on purpose, and reports others itself.
    """
    options = {
        "tool": tool,
        "target-processes": "application-only",  # not the compilers that it may start
        "show-backtrace": "device",
        "print-limit": str(PRINTED),
        "launch-timeout": "60",
        "error-exitcode": str(FOUND_CODE),
        "log-file": report,
    }
    if tool == "memcheck":
        options |= {"report-api-errors": "no", "padding": str(PADDING_BYTES)}
    return [path, *(word for name, value in options.items() for word in (f"--{name}", value)), "--"]


def read_memcheck(report: str, ended_well: bool = True, said: str = "") -> Memcheck:
    """Parse a report. `ended_well`: of the program; `said`: its own last output, used without a report."""
    lines = [line.removeprefix(MARK).strip() for line in report.splitlines() if line.startswith(MARK)]
    counts = [int(found[1].replace(",", "")) for line in lines if (found := _SUMMARY.match(line))]
    faults = tuple(_faults(lines))
    if faults:
        return Memcheck(state="found", faults=faults[:MOST_FAULTS], errors=max([len(faults), *counts]))
    if counts == [0] and ended_well:
        return Memcheck(state="clean")
    return Memcheck(state="silent", why=_why(lines, counts, said))


def parse_hazards(report: str, ended_well: bool = True, said: str = "") -> str:
    """Parse a report of racecheck or synccheck: `clean`, `N hazards`, `N errors`, or `silent: REASON`."""
    lines = [line.removeprefix(MARK).strip() for line in report.splitlines() if line.startswith(MARK)]
    found = [match for line in lines if (match := _HAZARDS.match(line))]
    counts = [int(match[1].replace(",", "")) for match in found]
    if any(counts):
        return f"{max(counts)} {found[0][2]}"
    return "clean" if counts and ended_well else f"silent: {_why(lines, counts, said)}"


def _faults(lines: Sequence[str]) -> Iterator[MemoryFault]:
    starts = [index for index, line in enumerate(lines) if _HEADING.fullmatch(line)]
    for start, end in pairwise([*starts, len(lines)]):
        yield _fault(lines[start], lines[start + 1 : end])


def _fault(heading: str, details: Sequence[str]) -> MemoryFault:
    found = {"what": heading[:WIDEST]}
    relation: list[str] = []
    for line in details:
        if at := _AT.fullmatch(line):
            found |= _place(at["kernel"] or "", at["where"] or "")
        elif frame := _FRAME.fullmatch(line):  # the heading's function was inlined; the last frame is the kernel
            found |= {"kernel": frame["kernel"][:WIDEST]}
        elif of := _LINE.fullmatch(line):
            found |= {"where": of[1][:WIDEST]}
        elif by := _BY.fullmatch(line):
            found |= {"by": by[1]}
        elif how := _IS.fullmatch(line):
            relation.append(how[1][:WIDEST])
        elif beside := _AND_IS.fullmatch(line):
            relation.append(beside[1] + (f" of size {beside[2].replace(',', '')} bytes" if beside[2] else ""))
    return MemoryFault(**found, relation=", ".join(relation))


def _place(kernel: str, where: str) -> dict[str, str]:
    """Return kernel and line, from either order in which releases of the tool print them."""
    old = None if kernel else _OLD_PLACE.fullmatch(where)
    if old:
        kernel, where = old["kernel"], old["where"]
    elif not kernel:
        kernel, where = where, ""
    return {"kernel": kernel[:WIDEST], "where": where[:WIDEST]}


def _why(lines: Sequence[str], counts: Sequence[int], said: str) -> str:
    """Describe a run without a usable report in one line, the tool's own message first."""
    found = [line for line in lines if line.startswith(("Error", "Internal", "Device not supported", "Warning"))]
    last = said.strip().splitlines()[-1:]
    if not found and any(counts):
        found = [f"{counts[-1]} errors of a kind that is not known here"]
    return "; ".join([*found[:1], *last])[: 2 * WIDEST] or "the run ended without output"


WORDS = {
    "gpu__time_duration.sum": "time",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "device memory, % of its peak",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors, % of their peak",
    "dram__bytes.sum": "bytes from and to device memory",
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy reached, %",
    "launch__registers_per_thread": "registers a thread",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "bytes used of each global load, %",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "shared memory bank conflicts",
    "smsp__inst_executed_op_local_ld.sum": "loads of spilled registers",
}
"""Counters that are kept in words too."""
METRICS = tuple(dict.fromkeys([*WORDS, *COUNTERS.values()]))
_UNKNOWN = re.compile(r"(?:Failed to find|not find|[Ii]nvalid|[Uu]nknown) metric\S*:? *['\"]?([\w.]+)")
LAUNCHES = 16
"""Profiled launches, from the first: each is repeated for every few metrics."""
PROFILED_SHARE = 0.9
"""Where a call has more launches, only kernels that make up this share of its time are profiled, the longest first."""
NCU_ENVIRONMENT = {
    # A jailed child has no other sockets.
    "NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE": "uds",
    "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1",
}
MOST_LACKING = 6
"""Runs until only counters are asked for that the device has; ncu names one or more at a time."""
PERMISSION = "ERR_NVGPUCTRPERM"
"""The code of ncu where the driver reserves the counters for administrators."""
COUNTER_REMEDY = (
    "run as root, or let everybody read the counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d and a reboot; in a container: --cap-add SYS_ADMIN"
)
IN_JAIL = "children of the judge are never administrators, so the latter setting is the one that helps"
TRIAL = "import torch; torch.ones(1 << 20, device='cuda').mul_(2); torch.cuda.synchronize()"
TRIAL_S = 180


def ncu_command(
    path: str, report: str, metrics: Sequence[str] = METRICS, kernels: Sequence[KernelTime] = ()
) -> list[str]:
    """Make the command prefix that profiles launches between the program's marks, with a report file.

    `kernels`: those of a call, where they are known; see `PROFILED_SHARE`.
    """
    marked = ["--target-processes", "application-only", "--profile-from-start", "off"]
    names = costly_names(kernels) if sum(one.launches for one in kernels) > LAUNCHES else []
    # A name that is as long as they get may be cut.
    ends = [f"{re.escape(name)}{'$' * (len(name) < LONGEST_NAME)}" for name in names]
    chosen = ["--kernel-name", f"regex:^({'|'.join(ends)})"] if ends else []
    return [*_ncu(path, LAUNCHES, metrics), *marked, *chosen, "--print-kernel-base", "demangled", "--log-file", report]


def costly_names(kernels: Sequence[KernelTime]) -> list[str]:
    """Return the base names of the kernels that make up `PROFILED_SHARE` of the time, the longest first."""
    ms: defaultdict[str, float] = defaultdict(float)
    for one in kernels:
        ms[base_name(one.name)] += one.ms
    names, left = [], PROFILED_SHARE * sum(ms.values())
    for name in sorted(ms, key=lambda name: -ms[name]):
        if left > 0:
            names.append(name)
        left -= ms[name]
    return names


def _ncu(path: str, launches: int, metrics: Sequence[str]) -> list[str]:
    """Make the common options, which leave the clocks of a shared card alone."""
    options = ["--csv", "--clock-control", "none", "--print-units", "base", "--launch-count", str(launches)]
    return [path, *options, "--metrics", ",".join(metrics)]


def read_counters(text: str) -> list[KernelFacts]:
    """Parse the launches in ncu's CSV in order; skip lines of the program."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    by_launch: dict[str, KernelFacts] = {}
    for row in rows:
        name, value = row.get("Metric Name") or "", row.get("Metric Value") or ""
        if value in ("", "n/a"):
            continue
        facts = by_launch.setdefault(row["ID"], KernelFacts(kernel=(row.get("Kernel Name") or "")[:WIDEST], metrics={}))
        if name in WORDS:
            facts.metrics[WORDS[name]] = f"{value} {row.get('Metric Unit') or ''}".strip()[:WIDEST]
        with suppress(ValueError):
            number = float(value.replace(",", ""))
            if math.isfinite(number):
                facts.values[name] = number
    return list(by_launch.values())


def ncu_failure(output: str) -> str:
    if PERMISSION in output:
        return f"the driver lets only administrators read the counters ({PERMISSION})"
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    return errors[0].removeprefix("==ERROR==").strip()[:WIDEST] if errors else "ncu reported no kernel"


def ncu_obstacle(output: str) -> str:
    why = ncu_failure(output)
    return f"{why}; {COUNTER_REMEDY}; {IN_JAIL}" if PERMISSION in output else why


def counter_obstacle(path: str) -> str:
    """Return why ncu cannot read the counters; empty where it can. Tries it on a small kernel, for some seconds."""
    words = [*_ncu(path, 1, METRICS), sys.executable, "-c", TRIAL]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({type(error).__name__})"
    return "" if read_counters(done.stdout) else ncu_failure(done.stdout + done.stderr)


def profiled_where_possible(settings: JudgeSettings) -> JudgeSettings:
    """Add `profile` to settings for a GPU whose counters can be read, which takes some seconds to try."""
    path = tool_path(CUDA_TOOLS[PROFILE]) if settings.effort != "screen" else None
    return settings.model_copy(update={"profile": True}) if path and not counter_obstacle(path) else settings


TOOL_S, DISASSEMBLING_S = 300.0, 30.0
MEMORY = 4
"""Memory limit as a multiple of other children's, since tools take memory."""
CALLED = ("load", "run", "check")
"""Stages in which a candidate's kernels run."""


class Tool(NamedTuple):
    path: str
    command: tuple[str, ...]
    """The words in front of the program's own; `{report}` is the file of the report."""
    environment: Mapping[str, str]


class Ran(NamedTuple):
    ended_well: bool
    report: str
    printed: str
    """The end of the output of the tool and the program, or the reason why there is none."""


class ToolTask(NamedTuple):
    plan: Mapping[str, object]
    kept: Mapping[str, Values]
    """Values that it maps, by name: `arguments`, `values` and, if any, `weights`."""


class Subject(NamedTuple):
    """A built candidate, and the reference that draws its values."""

    built: Built
    load: Callable[[], Mapping[str, object]]
    """Makes the message of a worker's `load`."""
    reference: Callable[[], ReferenceSession]
    settings: JudgeSettings


@contextmanager
def looked_at(subject: Subject) -> Iterator[None]:
    """Run the tools after the block: on a correct candidate, and on one that failed on the device for its reason.

    Results go into `subject.built.look`. A faulty access fails the stage `check`, or becomes the first line of an
    existing failure. Raises `MachineError` where a tool is missing or does not work.
    """
    settings, built = subject.settings, subject.built
    require_closer_look(settings.sanitize, settings.profile)
    try:
        yield
    except StageFailed as stop:
        late = isinstance(stop.__context__, ChildLate)  # it would take even longer under a tool
        if settings.sanitize and built.worker is not None and stop.stage in CALLED and not late:
            found = _sanitized(subject)
            if found.state == "found":
                raise StageFailed(stop.stage, f"{found}\n{stop.reason}", stop.log) from None
            if stop.is_unsteady:
                races = f"racecheck of shared memory: {hazards(subject, 'racecheck')}"
                raise StageFailed(stop.stage, stop.reason, f"{stop.log}\n{races}") from None
        raise
    if settings.sanitize:
        found = _sanitized(subject)
        if found.state == "found":
            raise StageFailed("check", str(found), "\n".join(map(str, found.faults)))
    if settings.profile:
        _profiled(subject)


def sanitizer(name: str = "memcheck") -> Tool:
    """Make memcheck, racecheck or synccheck of compute-sanitizer. Raises `MachineError` where it is missing."""
    path = tool_of(SANITIZE)
    return Tool(path, tuple(sanitizer_command(path, "{report}", name)), SANITIZER_ENVIRONMENT)


def hazards(subject: Subject, name: str) -> str:
    """Run racecheck or synccheck; see `parse_hazards`."""
    ran = run_call(subject, sanitizer(name))
    return parse_hazards(ran.report, ran.ended_well, ran.printed)


def _sanitized(subject: Subject) -> Memcheck:
    tool = sanitizer()
    ran = run_call(subject, tool)
    found = read_memcheck(ran.report, ran.ended_well, ran.printed)
    if found.state == "silent" and (
        why := _trial(tool.path, tool.command, tuple(tool.environment.items()), subject.settings)
    ):
        raise MachineError(f"compute-sanitizer does not work here ({why}); leave {SANITIZE} out, or fix that")
    _note(subject.built, memcheck=found)
    return found


def _profiled(subject: Subject) -> None:
    path, metrics, kernels = tool_of(PROFILE), METRICS, (subject.built.look or Look()).kernels
    for _ in range(MOST_LACKING):  # a device lacks some counters, and ncu then reads none
        ran = run_call(subject, Tool(path, tuple(ncu_command(path, "{report}", metrics, kernels)), NCU_ENVIRONMENT))
        counters, said = tuple(read_counters(ran.report)), f"{ran.report}\n{ran.printed}"
        lacking = set(_UNKNOWN.findall(said)) & set(metrics)
        if counters or not lacking:
            break
        metrics = tuple(metric for metric in metrics if metric not in lacking)
    cuobjdump = tool_path("cuobjdump")
    code = _machine_code(subject, cuobjdump, "--dump-sass") if cuobjdump else ()
    _note(subject.built, counters=counters, obstacle="" if counters else ncu_obstacle(said), code=code)


@contextmanager
def disassembled(subject: Subject) -> Iterator[None]:
    """Disassemble a correct candidate's libraries after the block; the opcodes go into `subject.built.look`."""
    yield
    try:
        path = tool_of(PROFILE, gpu=False)
    except MachineError as error:
        _note(subject.built, obstacle=str(error))
    else:
        _note(subject.built, code=_machine_code(subject, path, "--disassemble", "--no-show-raw-insn"))


def _machine_code(subject: Subject, path: str, *options: str) -> tuple[MachineCode, ...]:
    """Return the opcodes of what it has built, by function; empty where the tool fails."""
    try:
        with _seeing_tool(path, subject.built.folder, subject.settings) as session:
            answer = session.ask({"op": "machine code", "command": [path, *options]}, DISASSEMBLING_S)
        return tuple(
            MachineCode(kernel=one_line(name, WIDEST), opcodes=opcodes)
            for symbol, opcodes in answer["functions"]
            if (name := base_name(str(symbol)).partition(".")[0])
        )[:MOST_KERNELS]
    except (*BAD_RUNS, KeyError, TypeError, ValueError):  # ValidationError is a ValueError
        return ()


def _note(built: Built, **what: object) -> None:
    built.look = (built.look or Look()).model_copy(update=what)


def run_call(subject: Subject, tool: Tool) -> Ran:
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


@cache
def _trial(
    path: str, command: tuple[str, ...], environment: tuple[tuple[str, str], ...], settings: JudgeSettings
) -> str:
    """Return why memcheck does not work on this machine, tried with a correct program; empty where it does."""
    folder = WorkFolder()
    try:
        ran = run_under(Tool(path, command, dict(environment)), ToolTask({"trial": True}, {}), folder, settings)
    finally:
        folder.close()
    return read_memcheck(ran.report, ran.ended_well, ran.printed).why


def run_under(tool: Tool, call: ToolTask, folder: WorkFolder, settings: JudgeSettings) -> Ran:
    more = {"memory_bytes": MEMORY * settings.memory_bytes}
    try:
        with _seeing_tool(tool.path, folder, settings.model_copy(update=more)) as session:
            return _asked(session, tool, call, settings)
    except ChildLate:
        return Ran(False, "", f"it did not end within {TOOL_S:.0f} s")
    except BAD_RUNS as error:
        return Ran(False, "", str(error))


@contextmanager
def _seeing_tool(path: str, folder: WorkFolder, settings: JudgeSettings) -> Iterator[Session]:
    """Start a jailed child that sees a tool's folders; within the block it is ready."""
    folder.shown = folders(path)
    try:
        with Session("worker", folder, settings) as session:
            session.greet()
            yield session
    finally:
        folder.shown = ()


def _asked(session: Session, tool: Tool, call: ToolTask, settings: JudgeSettings) -> Ran:
    limit = settings.start_timeout_s
    session.ask({"op": "use device"}, limit)
    for name, values in call.kept.items():
        on_host = Values(values.tree, tuple(RawTensor.of(raw.tensor().cpu()) for raw in values.tensors))
        session.ask({"op": "keep", "name": name, "tree": values.tree}, limit, on_host)
    question: dict[str, Any] = {
        "op": "under tool",
        "command": list(tool.command),
        "environment": dict(tool.environment),
        "plan": dict(call.plan) | {"device": "cuda" if settings.gpu else "cpu"},
        "cores": list(settings.cores),
    }
    answer = session.ask(question, TOOL_S)
    return Ran(answer.get("code") == 0, str(answer.get("report", "")), str(answer.get("printed", "")))
