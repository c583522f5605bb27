"""compute-sanitizer's memcheck: how it is started, and what its report says. Pure; no device is needed to read one."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kernelwright.sandbox.judge.cuda_toolkit import SANITIZE, TOOLS
from kernelwright.sandbox.verdict.verdicts import MOST_FAULTS, Memcheck, MemoryFault

PROGRAM = TOOLS[SANITIZE]
MARK = "========="
FOUND_CODE = 77
PRINTED = 20
PADDING_BYTES = 4096
"""Between allocations: an access beyond one of them is then in none."""
ENVIRONMENT = {
    # Each tensor must be an allocation of its own, or an access beyond it is within torch's large block.
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


def command(path: str, report: str, tool: str = "memcheck") -> list[str]:
    """The words in front of a program's own: it runs under memcheck, racecheck or synccheck, which reports to a file.

    Errors that calls of the CUDA library return are left out: torch asks for what may not be there, and says so itself.
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


def read(report: str, ended_well: bool = True, said: str = "") -> Memcheck:
    """What a report says. `ended_well`: of the program; `said`: its own last words, for where there is no report."""
    lines = [line.removeprefix(MARK).strip() for line in report.splitlines() if line.startswith(MARK)]
    counts = [int(found[1].replace(",", "")) for line in lines if (found := _SUMMARY.match(line))]
    faults = tuple(_faults(lines))
    if faults:
        return Memcheck(state="found", faults=faults[:MOST_FAULTS], errors=max([len(faults), *counts]))
    if counts == [0] and ended_well:
        return Memcheck(state="clean")
    return Memcheck(state="silent", why=_why(lines, counts, said))


def read_hazards(report: str, ended_well: bool = True, said: str = "") -> str:
    """What racecheck or synccheck found: `clean`, `N hazards`, `N errors`, or `silent: REASON`."""
    lines = [line.removeprefix(MARK).strip() for line in report.splitlines() if line.startswith(MARK)]
    found = [match for line in lines if (match := _HAZARDS.match(line))]
    counts = [int(match[1].replace(",", "")) for match in found]
    if any(counts):
        return f"{max(counts)} {found[0][2]}"
    return "clean" if counts and ended_well else f"silent: {_why(lines, counts, said)}"


def _faults(lines: Sequence[str]) -> Iterator[MemoryFault]:
    """Each heading with what follows up to the next."""
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
    """Kernel and line, from either order in which releases of the tool tell them."""
    old = None if kernel else _OLD_PLACE.fullmatch(where)
    if old:
        kernel, where = old["kernel"], old["where"]
    elif not kernel:
        kernel, where = where, ""
    return {"kernel": kernel[:WIDEST], "where": where[:WIDEST]}


def _why(lines: Sequence[str], counts: Sequence[int], said: str) -> str:
    """One line on a run that ended without a report to go by: the tool's own complaint first."""
    told = [line for line in lines if line.startswith(("Error", "Internal", "Device not supported", "Warning"))]
    last = said.strip().splitlines()[-1:]
    if not told and any(counts):
        told = [f"{counts[-1]} errors of a kind that is not known here"]
    if not (told or last):
        return "the run ended without a word"
    return "; ".join([*told[:1], *last])[: 2 * WIDEST]
