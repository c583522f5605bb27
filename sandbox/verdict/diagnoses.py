"""Rules that name what limits a correct candidate, each with its evidence and a remedy. Pure; they decide no verdict.

They read the measurement, torch's list of kernels, ptxas's figures, the machine code and the counters of ncu. What was
not observed is left out: a rule whose facts are missing is silent.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kernelwright.sandbox.verdict.verdicts import Compiled, Look, MachineCode, Measurement

MOST, MOST_ROWS = 3, 8
"""Diagnoses and rows of kernels in a prompt, the most costly first."""
COUNTERS = {
    "time_ns": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "bytes": "dram__bytes.sum",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "fma": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "special": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "loads": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "stores": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "spills": "smsp__inst_executed_op_local_ld.sum",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "threads": "launch__block_size",
    "waves": "launch__waves_per_multiprocessor",
    "by_registers": "launch__occupancy_limit_registers",
    "by_shared": "launch__occupancy_limit_shared_mem",
} | {
    f"stall_{why}": f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio"
    for why in ("long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle", "math_pipe_throttle",
                "wait", "gmma", "membar", "not_selected", "selected")
}  # fmt: skip
"""ncu's counters by the names that the rules use."""
STALLS = {
    "long_scoreboard": (
        "data from device memory or L2",
        "Keep more loads in flight: cp.async or bulk copies into a ring of stages, several independent loads a thread.",
    ),
    "short_scoreboard": (
        "shared memory or special functions",
        "Read shared memory with fewer, wider, conflict-free accesses, and keep values in registers.",
    ),
    "mio_throttle": (
        "the queue of shared memory and special functions",
        "Issue fewer such instructions: 16-byte accesses, ldmatrix, register tiles.",
    ),
    "lg_throttle": ("the queue of global memory", "Issue fewer loads and stores: 16 bytes each, or bulk copies."),
    "barrier": (
        "other warps at a barrier",
        "Let warps wait less: named barriers for groups, mbarriers between producer and consumer, fewer phases.",
    ),
    "membar": ("a memory fence", "Use fences of the smallest scope, and fewer of them."),
    "gmma": (
        "wgmma products in flight",
        "Issue the next products before waiting for the last; let a second warpgroup do the rest meanwhile.",
    ),
    "math_pipe_throttle": (
        "an arithmetic unit that is busy",
        "Move work to idle units: tensor cores for products, packed half2 or bf16x2 arithmetic, fewer operations.",
    ),
    "wait": (
        "the fixed latency of its last instruction",
        "Give each thread independent instructions: unroll, and compute several results at once.",
    ),
}
"""What a stalled warp waits for, and the remedy; `selected` and `not_selected` are no waits."""
IS_BUSY = 80.0
"""Percent of peak from which a unit itself explains a launch, so that its waits are no diagnosis of their own."""
IDLE = 1.0
"""Percent of peak below which a unit may as well not be used."""
TENSOR = re.compile(r"[HIQDB]?G?MMA\b|UTC\w*MMA\b")
LOAD, WIDE = re.compile(r"LDG\."), re.compile(r"\.(?:64|128)\b")
LIBRARY = re.compile(
    r"^(?:void )?at::|at_cuda_detail|cutlass_\d|cublas|cudnn|nvjet_|^vectorized_elementwise|^reduce_kernel|nchwToNhwc"
)
COPIES = re.compile(r"[Mm]emcpy|[Mm]emset")
SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized(.*)", re.IGNORECASE)


class Diagnosis(NamedTuple):
    rule: str
    at_stake: float
    """Share of the call's time that the fault may cost, 0 to 1: the order of diagnoses."""
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.evidence} {self.remedy}"


class Call(NamedTuple):
    """A call of the candidate."""

    gpu_ms: float
    """On a processor the time of the call."""
    host_ms: float | None
    kernels: Sequence[tuple[str, int, float]]
    """Name, launches and milliseconds by torch's profiler, with a warm L2 cache."""
    cold_ms: float | None
    """Time of all its launches by ncu, which flushes the caches before each as the judge does before a call."""
    copy_ms: float | None
    warnings: Sequence[str]
    threads: tuple[float, int] | None = None
    """On a processor, how many threads work on average, and how many may."""
    code: Sequence[MachineCode] = ()
    """On a processor, all functions that it has built."""

    @property
    def kernel_ms(self) -> float:
        return sum(ms for _, _, ms in self.kernels)

    @property
    def launches(self) -> int:
        return sum(count for _, count, _ in self.kernels)

    def share_of(self, pattern: re.Pattern[str]) -> tuple[float, str]:
        """Return the share of the kernels' time that goes to kernels of such names, and the longest one's name."""
        found = sorted(((ms, name) for name, _, ms in self.kernels if pattern.search(name)), reverse=True)
        return (sum(ms for ms, _ in found) / self.kernel_ms, found[0][1]) if found and self.kernel_ms else (0.0, "")


class Launch(NamedTuple):
    """A launch of one of its kernels."""

    kernel: str
    share: float
    """Of the GPU time of the call."""
    ms: float
    """0 where it is not known."""
    of: Mapping[str, float]
    """Counters by their names in `COUNTERS`."""
    compiled: Compiled | None
    code: MachineCode | None
    needed_bytes: float | None
    """Bytes that the problem has to move, if the call is this launch alone."""
    multiplies: bool
    """Whether products, for which there are tensor cores, decide how fast the problem can be."""

    def at(self, name: str) -> float:
        """Return a counter; NaN where it was not read, which no comparison finds large or small."""
        return self.of.get(name, float("nan"))

    @property
    def uses_tensor_cores(self) -> bool | None:
        """By its machine code, else by their counter, which is hardly ever exactly 0; None where neither is known."""
        if self.code is not None:
            return self.code.count(TENSOR) > 0
        return self.of["tensor"] >= IDLE if "tensor" in self.of else None

    @property
    def is_busy(self) -> bool:
        return any(self.at(unit) > IS_BUSY for unit in ("memory", "l2", "tensor", "fma", "issue"))


Found = tuple[float, str] | None
"""Share of the time at stake, and the evidence as a sentence; None where the fault is not there."""


class Rule(NamedTuple):
    name: str
    of: Literal["call", "launch"]
    find: Callable[[Any], Found]
    remedy: str


RULES: list[Rule] = []
IN_NO_TIME = 0.02
"""At stake of what is worth a sentence but no part of the GPU time: it comes after the faults that are. Faults of a
launch that cost less are left out."""


def rule(of: Literal["call", "launch"], remedy: str) -> Callable[[Callable[[Any], Found]], Callable[[Any], Found]]:
    """Add a rule of a call or of each of its launches, named as its function."""

    def add(find: Callable[[Any], Found]) -> Callable[[Any], Found]:
        RULES.append(Rule(find.__name__.replace("_", " "), of, find, remedy))
        return find

    return add


@rule("call", "Do less in `forward`: no temporary tensors, one launch, or a CUDA graph where the contract allows it.")
def host_bound(call: Call) -> Found:
    if call.host_ms is None or call.host_ms <= call.gpu_ms:
        return None
    ratio = call.host_ms / call.gpu_ms
    return IN_NO_TIME, f"The host takes {call.host_ms:.3g} ms to issue a call, {ratio:.1f} times what the GPU takes."


@rule("call", "Fuse them, or overlap their starts with programmatic dependent launch.")
def many_launches(call: Call) -> Found:
    if call.launches < 4 or call.kernel_ms / call.launches > 0.01:
        return None
    each = 1e3 * call.kernel_ms / call.launches
    return 2.0 / (each + 2.0), f"A call is {call.launches} launches of {each:.1f} us on average."


@rule("call", "Let no launch wait for the host, and start the next one early with programmatic dependent launch.")
def gaps(call: Call) -> Found:
    idle_ms = call.gpu_ms - (call.cold_ms or call.gpu_ms)
    if call.launches < 2 or idle_ms < max(0.005, 0.15 * call.gpu_ms):
        return None
    share = idle_ms / call.gpu_ms
    return share, f"Its kernels take {call.cold_ms:.3g} of {call.gpu_ms:.3g} ms: {share:.0%} of a call is between them."


@rule("call", "Fuse them into your own kernel.")
def library_kernels(call: Call) -> Found:
    share, name = call.share_of(LIBRARY)
    evidence = f"{share:.0%} of the time goes to PyTorch's own kernels, most of it to {name[:60]}."
    return (share, evidence) if share > 0.1 else None


@rule("call", "Allocate with torch.empty, and write results where they belong.")
def copies(call: Call) -> Found:
    share, name = call.share_of(COPIES)
    return (share, f"{share:.0%} of the time goes to copies and fills ({name[:40]}).") if share > 0.03 else None


@rule("call", "Split the outermost loop over all threads, in parts of equal work.")
def idle_threads(call: Call) -> Found:
    if call.threads is None or call.threads[0] > 0.7 * call.threads[1]:
        return None
    busy, allowed = call.threads
    return 1 - busy / allowed, f"On average {busy:.1f} of {allowed} threads work."


SUMS = re.compile(r"v?(add|sub|fn?m(add|sub))\d*[sp][sdh]\b|vdp")
ARITHMETIC = re.compile(rf"{SUMS.pattern}|v?(mul|div|sqrt|max|min)[sp][sdh]\b")
PACKED, BEYOND_128 = re.compile(r"p[sdh]\.|vdp"), re.compile(r"(p[sdh]|vdp\w*)\.[yz]mm")
"""Floating-point instructions of x86-64; `s` before the type is one number, `p` and `vdp` a vector."""


def _arithmetic(call: Call) -> tuple[str, Sequence[MachineCode]]:
    """Return the functions of a processor, with the name of that with the most arithmetic; none near a copy's time."""
    if not call.code or (call.copy_ms and call.gpu_ms < 1.25 * call.copy_ms):
        return "", ()
    return max(call.code, key=lambda one: one.count(ARITHMETIC)).kernel, call.code


@rule("call", "Let it be vectorised: -O3 -march=native, contiguous data, `#pragma omp simd`, sums by its `reduction`.")
def scalar_arithmetic(call: Call) -> Found:
    name, code = _arithmetic(call)
    for kind, words in ((ARITHMETIC, "computes"), (SUMS, "adds up")):
        count = sum(one.count(kind) for one in code)
        if count > 3 and not any(one.count(kind, PACKED) for one in code):
            return 0.5, f"{name} {words} with {count} scalar instructions and no vector."
    return None


@rule("call", "Compile with -march=native; -mprefer-vector-width=512 where the processor has AVX-512.")
def narrow_vectors(call: Call) -> Found:
    name, code = _arithmetic(call)
    if not any(one.count(ARITHMETIC, PACKED) for one in code) or any(one.count(ARITHMETIC, BEYOND_128) for one in code):
        return None
    return 0.3, f"{name} uses vectors of 128 bits only."


@rule("call", "Only fewer bytes help.")
def at_the_wall(call: Call) -> Found:
    if call.copy_ms is None or call.gpu_ms > 1.08 * call.copy_ms:
        return None
    ratio = call.gpu_ms / call.copy_ms
    return IN_NO_TIME, f"It takes {ratio:.2f} times as long as a plain copy of the bytes that have to move."


@rule(
    "call",
    "Let only wgmma write accumulators between fence and wait, name all of them as operands of the same statement, and "
    "end each stage with a wait.",
)
def serialised_products(call: Call) -> Found:
    found = next((match for line in call.warnings if (match := SERIALIZED.search(line))), None)
    return (0.5, f"ptxas serialises the wgmma products{found[1].rstrip('. ')}.") if found else None


@rule("launch", "Shorten what lives across the main loop, use smaller tiles a thread, or raise the registers allowed.")
def spills(launch: Launch) -> Found:
    spilled = launch.compiled.spilled_bytes if launch.compiled else 0
    if launch.of.get("spills", spilled) == 0:  # a counter is of this instance, ptxas's figure of the worst one
        return None
    how = f"{spilled} bytes a thread" if spilled else f"registers ({launch.at('spills'):.3g} loads of them)"
    registers = launch.compiled.registers if launch.compiled else launch.at("registers")
    return 0.3, f"It spills {how} at {registers:.0f} registers."


@rule("launch", "Cut the work finer (smaller tiles, a split reduction) so that every multiprocessor has some.")
def few_blocks(launch: Launch) -> Found:
    waves = launch.at("waves")
    blocks = f"{launch.of['blocks']:.0f} blocks" if "blocks" in launch.of else "blocks"
    return (1 - waves, f"Its {blocks} take {waves:.0%} of the places on the device.") if waves < 0.9 else None


@rule("launch", "Choose tiles that fill whole waves, or a persistent grid that deals tiles out.")
def tail_wave(launch: Launch) -> Found:
    waves = launch.at("waves")
    idle = 1 - waves / math.ceil(waves) if 1 < waves < 4 else 0.0
    return (idle, f"Its blocks run in {waves:.2f} waves, the last one mostly empty.") if idle > 0.2 else None


@rule("launch", "Keep what is read again on chip: tiles in shared memory, fused passes, blocks ordered to share L2.")
def excess_traffic(launch: Launch) -> Found:
    moved, needed = launch.at("bytes"), launch.needed_bytes
    if not needed or not moved > 1.4 * needed or not launch.at("memory") > 30:
        return None
    return 1 - needed / moved, f"It moves {moved / 1e6:.4g} MB of device memory where {needed / 1e6:.4g} MB are needed."


@rule("launch", "Only fewer bytes help: fuse passes, recompute, use a narrower type where the result allows it.")
def device_memory_full(launch: Launch) -> Found:
    busy = launch.at("memory")
    return (1 - busy / 100, f"Device memory is busy for {busy:.0f} % of its peak.") if busy > IS_BUSY else None


@rule("launch", "Reuse more from shared memory and registers: larger tiles, clusters with multicast.")
def l2_full(launch: Launch) -> Found:
    busy, memory = launch.at("l2"), launch.at("memory")
    found = busy > 75 and not memory > 60
    return (0.3, f"L2 is busy for {busy:.0f} % of its peak, device memory for {memory:.0f} %.") if found else None


@rule("launch", "Let neighbouring threads read neighbouring 16 bytes; transpose through shared memory.")
def scattered_loads(launch: Launch) -> Found:
    used = launch.at("loads")
    return (0.5 - used / 200, f"Its loads use {used:.0f} % of the bytes of each sector.") if 0 < used < 60 else None


@rule("launch", "Let neighbouring threads write neighbouring 16 bytes; stage the tile in shared memory.")
def scattered_stores(launch: Launch) -> Found:
    used = launch.at("stores")
    return (0.5 - used / 200, f"Its stores use {used:.0f} % of the bytes of each sector.") if 0 < used < 60 else None


@rule("launch", "Pad rows to an odd number of 16-byte units, or swizzle the columns by the row.")
def bank_conflicts(launch: Launch) -> Found:
    all_ = launch.at("wavefronts")
    share = launch.at("conflicts") / all_ if all_ > 0 else 0.0
    evidence = f"{share:.0%} of the accesses to shared memory wait for a bank conflict."
    return (0.5 * share, evidence) if share > 0.2 else None


@rule("launch", "Use them: wgmma or mma.sync, for fp32 on split operands where full precision is asked for.")
def no_tensor_cores(launch: Launch) -> Found:
    found = launch.multiplies and launch.share > 0.5 and launch.uses_tensor_cores is False
    return (0.7, "It uses no tensor-core instruction, and most of the work is products.") if found else None


@rule("launch", "Only fewer products help: another algorithm, fewer pieces, no work on padding.")
def tensor_cores_full(launch: Launch) -> Found:
    busy = launch.at("tensor")
    return (1 - busy / 100, f"The tensor cores are busy for {busy:.0f} % of the time.") if busy > 75 else None


@rule("launch", "Feed them: a ring of bulk copies, a producer warp, the epilogue beside the next tile's products.")
def tensor_cores_idle(launch: Launch) -> Found:
    busy = launch.at("tensor")
    found = launch.multiplies and launch.uses_tensor_cores and busy < 55
    return (0.8 - busy / 125, f"The tensor cores are busy for {busy:.0f} % of the time.") if found else None


@rule("launch", "Move products to tensor cores, or use fewer operations.")
def fp32_units_full(launch: Launch) -> Found:
    busy = launch.at("fma")
    return (0.3, f"The fp32 units are busy for {busy:.0f} % of the time.") if busy > 70 else None


@rule("launch", "Compute part of the exponentials by polynomials, and one reciprocal for several divisions.")
def special_functions_full(launch: Launch) -> Found:
    busy = launch.at("special")
    return (0.3, f"The special function units are busy for {busy:.0f} % of the time.") if busy > 60 else None


@rule("launch", "Give each warp independent work, or use fewer registers and less shared memory a block.")
def low_occupancy(launch: Launch) -> Found:
    taken, issue = launch.at("occupancy"), launch.at("issue")
    if not taken < 30 or not issue < 40 or launch.at("tensor") > 40:
        return None
    limits = {words: launch.of[name] for name, words in LIMITS.items() if name in launch.of}
    least = min(limits, key=lambda words: limits[words], default="")
    why = f", limited to {limits[least]:.0f} blocks a multiprocessor by {least}" if least else ""
    return 0.3, f"{taken:.0f} % of the places for warps are taken{why}; {issue:.0f} % of issue slots are used."


LIMITS = {"by_registers": "registers", "by_shared": "shared memory"}


@rule("launch", "Load 16 bytes at a time where addresses are aligned.")
def narrow_loads(launch: Launch) -> Found:
    loads = launch.code.count(LOAD) if launch.code else 0
    if launch.code is None or loads < 2 or launch.code.count(LOAD, WIDE) or launch.at("memory") > IS_BUSY:
        return None
    return 0.2, f"All {loads} global loads in its code take 4 bytes or fewer a thread."


def _waits(launch: Launch) -> Diagnosis | None:
    """Name what warps wait for most, where no unit is busy enough to explain the time."""
    stalls = {name: value for name, value in launch.of.items() if name.startswith("stall_")}
    worst = max(STALLS, key=lambda why: stalls.get(f"stall_{why}", 0.0))
    share = stalls.get(f"stall_{worst}", 0.0) / (sum(stalls.values()) or 1.0)
    if not share > 0.3 or launch.is_busy:
        return None
    what, remedy = STALLS[worst]
    return Diagnosis("waits", 0.7 * share, f"{share:.0%} of a warp's time is a wait for {what}.", remedy)


def diagnose(measured: Measurement, look: Look) -> list[Diagnosis]:
    """Return what the rules find, the most costly first."""
    profiled = [one.values["gpu__time_duration.sum"] for one in look.counters if "gpu__time_duration.sum" in one.values]
    call = Call(
        gpu_ms=measured.candidate_ms,
        host_ms=measured.host_time_ms,
        kernels=[(one.name, one.launches, one.ms) for one in look.kernels],
        cold_ms=sum(profiled) / 1e6 if len(profiled) == sum(one.launches for one in look.kernels) else None,
        copy_ms=measured.floor.copy_ms if measured.floor else None,
        warnings=look.warnings,
        threads=_threads(measured),
        code=() if look.kernels else look.code,
    )
    found = list(_found("call", call))
    for launch in launches(measured, look):
        waits = _waits(launch)
        for one in (*_found("launch", launch), *([waits] if waits else [])):
            at_stake = launch.share * one.at_stake
            if at_stake >= IN_NO_TIME:
                found.append(one._replace(at_stake=at_stake, evidence=f"{launch.kernel}: {one.evidence}"))
    return sorted(found, key=lambda one: -one.at_stake)


def _threads(measured: Measurement) -> tuple[float, int] | None:
    is_known = measured.on_device is None and measured.candidate_cpu_ms and measured.threads > 1
    if not is_known or measured.comparison == "too_noisy":  # others may have had the cores
        return None
    return statistics.median(measured.candidate_cpu_ms) / measured.candidate_ms, measured.threads


def _found(of: str, facts: Call | Launch) -> Iterator[Diagnosis]:
    for one in RULES:
        if one.of == of and (found := one.find(facts)) is not None:
            yield Diagnosis(one.name, *found, one.remedy)


def launches(measured: Measurement, look: Look) -> list[Launch]:
    """Return its profiled launches; without counters, one for each kernel of torch's list, or else of ptxas's."""
    floor = measured.floor
    counters = [
        (one.kernel, {name: one.values[counter] for name, counter in COUNTERS.items() if counter in one.values})
        for one in look.counters
        if one.values
    ]
    listed = [(one.name, {"time_ns": 1e6 * one.ms}) for one in look.kernels]
    rows: list[tuple[str, dict[str, float]]] = counters or listed or [(one.kernel, {}) for one in look.compiled]
    profiled_ns = sum(of.get("time_ns", 0.0) for _, of in rows)
    total = max(profiled_ns, 1e6 * measured.candidate_ms) if counters else profiled_ns  # there may be more launches
    return [
        Launch(
            kernel=short_name(name),
            share=of["time_ns"] / total if total and "time_ns" in of else 1 / len(rows),
            ms=of.get("time_ns", 0.0) / 1e6,
            of=of,
            compiled=next((one for one in look.compiled if one.kernel == base_name(name)), None),
            code=next((one for one in look.code if one.kernel == base_name(name)), None),
            needed_bytes=floor.work.bytes if floor and len(rows) == 1 else None,
            multiplies=floor is not None and floor.direct_ms > 0.5 * floor.memory_ms,
        )
        for name, of in rows
    ]


def _plain(kernel: str) -> str:
    return kernel.replace("(anonymous namespace)::", "").removeprefix("void ")


def short_name(kernel: str) -> str:
    """Return a kernel's name for a reader: with template values, without return type and parameters."""
    return re.sub(r"\([\w: ]+\)(?=-?\w)", "", _plain(kernel)).partition("(")[0][:LONGEST_NAME] or kernel


LONGEST_NAME = 60
MANGLED = re.compile(r"_Z+N?K?L?(?=\d)")


def base_name(kernel: str) -> str:
    """Return the start of a kernel's own name, without return type, namespaces, template values and parameters.

    In mangled names, which it takes too, each identifier stands behind its length (Itanium C++ ABI, 5.1).
    """
    mangled = MANGLED.match(kernel)
    if mangled is None:
        return (re.split(r"[<(]", _plain(kernel), maxsplit=1)[0].rpartition("::")[2] or kernel)[:LONGEST_NAME]
    rest, name, is_nested = kernel[mangled.end() :], kernel, "N" in mangled[0]
    while size := re.match(r"\d{1,3}", rest):
        end = size.end() + int(size[0])
        name, rest = rest[size.end() : end], rest[end:]
        if not is_nested:  # identifiers that follow are types of parameters
            break
    return name[:LONGEST_NAME]


WHAT_LIMITS = "what limits it, the most costly first:"
SHOWN = {"memory": "of peak device memory", "tensor": "of peak tensor cores", "issue": "of issue slots"}


def lines_of(measured: Measurement, look: Look, most: int = MOST) -> Iterator[str]:
    """Describe a closer look in words: a row for each kernel, what ptxas warns of, and the most costly diagnoses."""
    rows = sorted(launches(measured, look), key=lambda row: -row.share)
    if rows:
        count = sum(one.launches for one in look.kernels)
        part = f", {len(rows)} of {count} launches" if look.counters and count > len(rows) else ""
        yield f"kernels of a call{part}:" if look.counters else "kernels of a call, with a warm L2 cache:"
    for row in rows[:MOST_ROWS]:
        facts = [f"{row.ms:#.3g} ms, {row.share:.0%}"] if row.ms else []
        if row.compiled:
            facts.append(f"{row.compiled.registers} registers")
        if "blocks" in row.of:
            facts.append(f"{row.of['blocks']:.0f} blocks of {row.at('threads'):.0f} threads")
        facts += [f"{row.of[unit]:.0f} % {words}" for unit, words in SHOWN.items() if unit in row.of]
        yield f"  {row.kernel}: {', '.join(facts)}"
    if len(rows) > MOST_ROWS:
        yield f"  and {len(rows) - MOST_ROWS} more"
    yield from (f"compiler: {line}" for line in look.warnings[:most])
    found = diagnose(measured, look)[:most]
    if found:
        yield WHAT_LIMITS
        yield from (f"  {number}. {one}" for number, one in enumerate(found, 1))
    if look.obstacle:
        yield f"no closer look: {look.obstacle}"
