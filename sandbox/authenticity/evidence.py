"""Evidence, from a candidate's text and from a run, of whether it computes with code of its own. Pure.

Neither source of evidence is proof: text can hide what it does, and a candidate can lie in the process that observes
it. So each statement says where it comes from, and a refusal under a problem's policy names what it rests on.

What this cannot see: a library's product whose name is put together while it runs and that is called through ctypes
or dlsym where nothing observes; a library that is found by an address rather than by its name; operators behind objects
that text does not name; how long an operator takes where nothing observes, since an observed call may wait on purpose;
and a kernel of its own that computes something and whose result is not used. Who rewards kernels reads the best ones.
"""

import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.authenticity.library_calls import (
    Reach,
    Unreadable,
    array_calls,
    cpp_operators,
    dispatched,
    library_calls,
    reach,
    silencers,
    vendor_symbols,
    vendor_words,
)
from kernelwright.sandbox.authenticity.operator_names import (
    ATTENTION,
    CONVOLUTIONS,
    LIBRARY_IN_CPP,
    PRODUCTS,
    RECORDING_SPACES,
    RECURRENT,
    SOLVERS,
    TORCH_SPACES,
    VENDOR_SPACES,
)
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.storage import open_read
from kernelwright.sandbox.verdict.verdicts import Authenticity

Label = Literal["custom", "mixed", "library_only", "unknown"]
CAVEAT = "from the text alone; not observed at run time"
LONGEST_NAME = 200
OBSERVED_CAVEAT = "observed in the candidate's own process, which could lie"
EXPLAINED = 0.8
"""So much of the observed time must be that of known code, or nothing is said of who did the work."""
GLUE_US = 50.0
"""A line that takes no more counts for nothing: Python's own work beside a short kernel."""
LIBRARY_KERNEL = re.compile(
    r"^(void )?(at|at_cuda_detail|cub|thrust)::|cublas|cudnn|cusparse|cufft|cusolver|nvjet|xmma|splitKreduce|"
    r"implicit_convolve|(ampere|volta|turing|hopper|maxwell|blackwell|cutlass|sm)_?\d*_\w*(gemm|tensorop|simt|wgmma|conv)|"
    r"\bgem(v\w*(NSP|2[NT])|mk1|mSN_)\w*_kernel|pytorch_flash|\bfmha|\btriton_(poi|red|per|tem|mm)_"
)
"""Names of kernels that libraries bring along; what a candidate compiles has others."""
MOVING_KERNEL = re.compile(r"Mem(cpy|set)\b")
SMALL_SHARE = 0.05
"""Operators that take less of a call than this are not counted as its work."""
PLUMBING = re.compile(
    r"(aten|prims)::(_?(un)?safe_)?(empty|zeros|ones|full|fill|zero|view|reshape|as_strided|transpose|t$|permute|expand|slice|select|"
    r"narrow|squeeze|unsqueeze|contiguous|clone|copy|to$|_to_copy|detach|alias|resize|set_|resolve|lift|flatten|chunk|"
    r"split|unbind|is_|item|_local_scalar|result_type|stride|size|numel|record_stream|pin_memory|new_|arange|scalar_tensor)"
)
"""Operators that make, shape or move tensors without computing."""
VENDOR = re.compile(
    r"aten::(matmul|mm|_?addmm\w*|bmm|baddbmm|addbmm|linear|addmv|mv|v?dot|inner|tensordot|chain_matmul|_?\w+_mm|einsum|_?convolution\w*|conv(_transpose)?[123]d|mkldnn\w*|"
    r"cudnn\w*|miopen\w*|slow_conv\w*|_slow_conv\w*|thnn_conv\w*|\w*attention\w*|lstm\w*|gru\w*|rnn\w*|_fft\w*|linalg\w*)$"
    rf"|({'|'.join(sorted(VENDOR_SPACES))})::"
)
"""Operators that a vendor's library computes."""
COMPILED = re.compile(r"Torch-Compiled|CompiledFxGraph|CompiledFunction|TorchDynamo")
COMPUTING = TORCH_SPACES - RECORDING_SPACES
HOST = ("builtins", "torch", "numpy", "_ctypes", "ctypes", "time", "math", "posix", "gc", "_io", "_thread", "threading")


def _space(operator: str) -> str:
    """The namespace of an operator; empty for what is none."""
    return operator.partition("::")[0] if "::" in operator else ""


def _shown(value: object) -> object:
    return one_line(value, LONGEST_NAME) if isinstance(value, str) else value


Name = Annotated[str, BeforeValidator(_shown)]
"""A name as a child said it, fit to be shown."""


class Observed(Record):
    """The report of `kernelwright_child.observe` on one call. The process may lie; sizes are bounded here once more."""

    operators: tuple[tuple[Name, int, float], ...] = Field(default=(), max_length=64)
    """Name, calls, and microseconds of its own, of each operator."""
    kernels: tuple[tuple[Name, int, float], ...] = Field(default=(), max_length=64)
    wall_us: float = 0.0
    lines: tuple[int, ...] = Field(default=(), max_length=4000)
    """Of the candidate's source, those that were executed."""
    line_us: tuple[float, ...] = Field(default=(), max_length=4000)
    """Microseconds of each of these, with all that it calls elsewhere."""
    natives: tuple[Name, ...] = Field(default=(), max_length=64)
    dynamic: bool = False
    error: Name = Field(default="", max_length=LONGEST_NAME)

    @classmethod
    def read(cls, answer: dict[str, Any]) -> "Observed":
        """Read the claims of an answer; only an error where it has another form."""
        try:
            return cls.model_validate(answer)
        except ValidationError:
            return cls(error="the candidate's process gave no account that can be read")

    @property
    def is_compiled(self) -> bool:
        return any(COMPILED.search(name) for name, _, _ in self.operators)

    def share(self, pattern: re.Pattern[str] | None = None) -> tuple[float, list[str]]:
        """The part of the call that computing operators took, and their names; those of `pattern` only, if given."""
        chosen = [
            (name, us)
            for name, _, us in self.operators
            if _space(name) in COMPUTING and (pattern.match(name) if pattern else not PLUMBING.match(name))
        ]
        return sum(us for _, us in chosen) / self.wall_us if self.wall_us > 0 else 0.0, [name for name, _ in chosen]


def read_authenticity(source: str) -> Authenticity:
    """A label from the text alone: own kernels, library calls, both or neither, as far as `forward` leads to them."""
    try:
        found = reach(source)
    except Unreadable as why:
        return Authenticity(label="unknown", evidence=(str(why),))
    library = _library(found, source)
    custom = bool(found.own_calls)
    evidence = ["forward leads to a kernel of its own"] if custom else []
    if found.builds and not custom:
        evidence.append("the source builds a kernel, but forward does not lead to a call of it")
    if library:
        evidence.append(f"the source calls library operators: {_listed(library, 8)}")
    return Authenticity(label=_label(custom, bool(library)), evidence=(*evidence, CAVEAT))


def judge_authenticity(source: str, observed: Observed) -> Authenticity:
    """The label from text and run together; where the run could not be observed, from the text."""
    read = read_authenticity(source)
    try:
        found = reach(source)
    except Unreadable:
        found = None
    if observed.error or found is None:
        return read.model_copy(update={"evidence": (*read.evidence, *filter(None, [observed.error]))})
    own = _own_reached(found, observed)
    names = observed.share()[1]
    evidence = list(_observations(found, observed, own))
    if silent := silencers(found, set()):
        evidence.append(f"{_listed(silent)} turns off what records operators")
        label: Label = "unknown"
    elif observed.is_compiled:
        evidence.append("torch.compile computed")
        label = _label(own, True)
    elif not own:
        label = _label(False, bool(names) or bool(_library(found, source)))
    else:
        mine, theirs, moving = _time_shares(found, observed)
        is_explained = mine + theirs + moving >= EXPLAINED
        theirs_too = theirs >= SMALL_SHARE or bool(_shared_lines(found, observed))
        label = _label(mine >= SMALL_SHARE, theirs_too) if is_explained else "unknown"
        evidence.append(
            f"of the time, {100 * mine:.0f} % went to code of its own and {100 * theirs:.0f} % to a library's"
        )
    return Authenticity(label=label, evidence=(*evidence, *read.evidence[:-1], OBSERVED_CAVEAT))


def refusal(problem: Problem, source: str, observed: Observed, symbols: frozenset[str] = frozenset()) -> str:
    """Return why the problem's operator policy refuses a candidate that computes rightly, or an empty string.

    `symbols` are the names that what it has built leaves to other libraries to define.
    """
    if problem.operators == "any":
        return ""
    try:
        found = reach(source)
    except Unreadable as why:
        return f"the problem's policy is {problem.operators}: {why}"
    vendor = vendor_words(found) | vendor_symbols(set(symbols))
    arrays = {call.shown for call in array_calls(found) if not call.constructs}
    if observed.error:
        fault = f"the call could not be observed: {observed.error}"
    elif silent := silencers(found, set(symbols)):
        fault = f"the call could not be observed: {_listed(silent)} turns off what records operators"
    elif observed.is_compiled:
        fault = "only own kernels count, and torch.compile computed the result"
    elif problem.operators == "no-library":
        fault = _library_fault(found, observed, vendor | arrays, symbols)
    else:
        fault = _custom_fault(found, observed, vendor) or _unseen_fault(found, observed, symbols, arrays)
    return one_line(f"the problem's policy is {problem.operators}: {fault}") if fault else ""


def _library_fault(found: Reach, observed: Observed, named: set[str], symbols: frozenset[str]) -> str:
    """What ran of libraries, or else what the text and the symbols name: it may have known that it was observed."""
    if names := observed.share(VENDOR)[1]:
        return f"library operators do not count, and these ran: {_listed(names)}"
    calls = {(call.shown, call.operator) for call in library_calls(found) if not call.constructs}
    native = {(name, name) for name in cpp_operators(found) | dispatched(set(symbols))}
    named = named | {shown for shown, operator in calls | native if _is_vendors(operator)}
    return f"library operators do not count, and it names {_listed(named)}" if named else ""


def _is_vendors(operator: str) -> bool:
    plain = operator.strip("_")
    return plain in PRODUCTS | CONVOLUTIONS | SOLVERS | RECURRENT | ATTENTION or bool(VENDOR.match(operator))


def _custom_fault(found: Reach, observed: Observed, vendor: set[str]) -> str:
    share, names = observed.share()
    ran = _listed(names)
    if not _own_reached(found, observed):
        return f"only own kernels count, and none was reached{f'; what ran: {ran}' if ran else ''}"
    if vendor:
        return f"only own kernels count, and it names those of a library: {_listed(vendor)}"
    seen = observed.share(VENDOR)[1]
    if seen:  # however small its share: the rest of a call may be nothing but waiting
        return f"only own kernels count, and these ran too: {_listed(seen)}"
    return f"only own kernels count, and {100 * share:.0f} % of the call went to {ran}" if share >= SMALL_SHARE else ""


def _unseen_fault(found: Reach, observed: Observed, symbols: frozenset[str], arrays: set[str]) -> str:
    """Library calls that the text has and the run did not show: it may have known that it was observed.

    What numpy and scipy compute is never shown.
    """
    calls = [call for call in library_calls(found) if not call.constructs and not _is_seen(call.operator, observed)]
    native = {name for name in cpp_operators(found) | dispatched(set(symbols)) if not _is_seen(name, observed)}
    unseen = {f"{call.shown} in line {call.line}" for call in calls} | {f"{name} in C++" for name in native}
    if arrays:
        return f"only own kernels count, and forward leads to {_listed(arrays)}"
    if not unseen:
        return ""
    return f"only own kernels count, and forward also has a way to {_listed(unseen)} that did not run; take it out"


def _is_seen(operator: str, observed: Observed) -> bool:
    known = re.compile(
        re.escape(operator) if "::" in operator else rf"aten::_?(linalg_)?(vector_)?{operator.strip('_')}"
    )
    return any(known.match(name) for name, _, _ in observed.operators)


def _listed(names: Iterable[str], most: int = 4) -> str:
    """The first of them, in the order of a list and otherwise by name."""
    chosen = names if isinstance(names, list) else sorted(names)
    return ", ".join(chosen[:most])


def _label(own: bool, library: bool) -> Label:
    if own:
        return "mixed" if library else "custom"
    return "library_only" if library else "unknown"


def _time_shares(found: Reach, observed: Observed) -> tuple[float, float, float]:
    """Of the observed time, the parts of code of its own, of libraries, and of what only makes or moves tensors.

    On a device those of its kernels' time. Elsewhere that of lines which lead to native code of its own, less what
    operators took, which may be called from there.
    """
    if device_us := sum(us for _, _, us in observed.kernels):
        library = sum(us for name, _, us in observed.kernels if LIBRARY_KERNEL.search(name)) / device_us
        moving = sum(us for name, _, us in observed.kernels if MOVING_KERNEL.search(name)) / device_us
        return 1 - library - moving, library, moving
    timed = list(zip(observed.lines, observed.line_us, strict=False))
    own_us = sum(us for line, us in timed if line in found.own_calls)
    other_us = sum(max(0.0, us - GLUE_US) for line, us in timed if line not in found.own_calls)
    own = own_us / (own_us + other_us or 1.0)
    every, library = observed.share(re.compile(""))[0], observed.share()[0]
    return min(own, max(0.0, 1 - every)), library, max(0.0, every - library)


def _shared_lines(found: Reach, observed: Observed) -> set[int]:
    """Lines that ran, lead to a kernel of its own, and hold a library call whose time no profiler tells apart."""
    calls = [call for call in library_calls(found) if not _is_seen(call.operator, observed)] + array_calls(found)
    return {call.line for call in calls if not call.constructs} & found.own_calls & set(observed.lines)


def _own_reached(found: Reach, observed: Observed) -> bool:
    """Return whether its native code was called: by line, as an extension's function, or as an operator."""
    if found.own_calls & set(observed.lines):
        return True
    if found.builds and any(name.partition(".")[0] not in HOST for name in observed.natives):
        return True
    namespaces = {_space(name) for name, _, _ in observed.operators} - {""}
    return found.builds and bool(namespaces - TORCH_SPACES)


def _observations(found: Reach, observed: Observed, own: bool) -> list[str]:
    lines = ["a kernel of its own was reached"] if own else ["no kernel of its own was reached"]
    share, names = observed.share()
    if names:
        lines.append(f"operators took {100 * share:.0f} % of the call: {', '.join(names[:6])}")
    if observed.kernels:
        lines.append(f"device kernels: {', '.join(name for name, _, _ in observed.kernels[:6])}")
    ran = [line for line, body in found.handlers if body & set(observed.lines)]
    if ran:
        lines.append(f"an exception led to another way: the except clause in line {', '.join(map(str, sorted(ran)))}")
    if observed.dynamic:
        lines.append("code that stands in no file was executed")
    return lines


def _library(found: Reach, source: str) -> set[str]:
    called = {call.shown for call in library_calls(found) + array_calls(found)}
    return called | set(LIBRARY_IN_CPP.findall(source))


# A candidate may have written these files. What is malformed is left out, and no file takes more than a bounded effort.
# The table of sections is read, which linkers write and loaders do not need: a library without it shows no symbols.
MAGIC = b"\x7fELF\x02\x01"
"""Of 64 bits, little end first."""
LARGEST_FILE = 32 * 2**20
MOST_FILES, MOST_LIBRARIES, MOST_SYMBOLS, LONGEST_SYMBOL = 2000, 32, 20_000, 1000
DYNAMIC_SYMBOLS = 11
"""The type of the section that holds them."""
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16x24xQ10xHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


def needed_symbols(folder: Path) -> set[str]:
    """Names that the shared libraries in a folder and below leave to others to define."""
    paths = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)  # noqa: PTH118
    return set().union(*map(undefined, islice(_libraries(paths), MOST_LIBRARIES)))


def _libraries(paths: Iterator[str]) -> Iterator[bytes]:
    """The contents of the ELF files among the first of the paths."""
    for path in islice(paths, MOST_FILES):
        try:
            with open_read(path) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(len(MAGIC)) == MAGIC:
                    yield MAGIC + file.read(LARGEST_FILE)
        except OSError:
            continue


def undefined(data: bytes) -> set[str]:
    """The undefined dynamic symbols of a 64-bit little-endian ELF file; none for anything else."""
    if not data.startswith(MAGIC):
        return set()
    try:
        return _undefined(data)
    except (struct.error, OverflowError):
        return set()


def _undefined(data: bytes) -> set[str]:
    start, size, count, _ = _HEADER.unpack_from(data)
    if size != _SECTION.size:
        return set()
    sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
    table = next((section for section in sections if section[1] == DYNAMIC_SYMBOLS and section[6] < count), None)
    if table is None:
        return set()
    offset, length, names = table[4], table[5], sections[table[6]][4]
    found: set[str] = set()
    for index in range(min(length // _SYMBOL.size, MOST_SYMBOLS)):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(data, offset + index * _SYMBOL.size)
        if section == 0 and name:
            start = names + name
            found.add(data[start : start + LONGEST_SYMBOL].partition(b"\0")[0].decode("ascii", "replace"))
    return found
