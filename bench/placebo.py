"""References judged as their own candidates: how often does the judge claim a difference that is not there?

On the processor, `python -m bench placebo`: `KERNELWRIGHT_PLACEBOS` judgings (200) over ten problems of the catalog, or
those that `KERNELWRIGHT_BENCH` names, with `KERNELWRIGHT_EFFORT` (rank). Run it on an otherwise idle machine: on a busy
one most answers are `too_noisy`, which is right and proves nothing.

On a GPU, `python -m bench gpu_placebo`: 20 problems from 10 us to 10 ms, small and of several GiB, beside a placebo. It
shows whether the clock favours a side or a place in the order. `KERNELWRIGHT_BENCH` picks problems, by addresses too;
`catalog` is all of the catalog, and a checkout of a benchmark all of that. `KERNELWRIGHT_VERDICTS` (40) is how many
verdicts 20 problems get, `KERNELWRIGHT_EFFORT` (search) their effort. Each is a line of `gpu-placebo.jsonl`; what is
there is not judged again. `gpu_placebo FILE...` only reports on such files.
"""

import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.measuring import NO_DEVICE, Kept, Report, chosen, interval_by_problem, is_in_time
from kernelwright.evals.metrics import sign_test
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.problems.formats import SEPARATOR, read_collection
from kernelwright.sandbox.jail.zygote import keep_freed_memory
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.timing.baseline_facts import PLACEBO
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import EAGER, Candidate, Passed, Verdict
from kernelwright_child import driver
from tests.gpu.honest import problem

PROBLEMS = (
    "activation_chain",
    "argmax_rows",
    "conv_transpose2d_depthwise",
    "cross_entropy",
    "cumsum_rows",
    "gelu_bias_residual",
    "layer_norm",
    "matmul_square",
    "max_pool2d",
    "softmax_rows",
)
COUNT, MOST_FASTER, SURE = 200, 0.01, 0.95


class Placebo(NamedTuple):
    """One verdict on a reference as its own candidate; no speedup where it failed."""

    outcome: str
    speedup: float | None
    covers: bool | None
    """True where the interval holds 1."""
    worker_pairs: int
    seconds: float


def run() -> Report:
    """References against themselves on the processor, one after the other."""
    keep_freed_memory()
    names = chosen(PROBLEMS)
    settings = JudgeSettings.model_validate({"effort": os.environ.get("KERNELWRIGHT_EFFORT", "rank")})
    each = -(-int(os.environ.get("KERNELWRIGHT_PLACEBOS", COUNT)) // len(names))
    found: list[Placebo] = []
    for name in names:
        with Judge(load_problem(name, "cpu"), settings) as judge:
            here = [_judged(judge) for _ in range(each)]
        print(f"  {name}: {dict(Counter(one.outcome for one in here))}", flush=True)
        found += here
    return report(found)


def _against_itself(judge: Judge) -> Verdict:
    return judge.judge(Candidate(source=judge.problem.source + "\n\nclass ModelNew(Model):\n    pass\n"))


def _judged(judge: Judge) -> Placebo:
    start = time.perf_counter()
    verdict = _against_itself(judge)
    seconds = time.perf_counter() - start
    if not isinstance(verdict, Passed):
        return Placebo("failed", None, None, 0, seconds)
    measured = verdict.measurement
    low, high = measured.interval
    pairs = len(set(measured.closest.workers))
    return Placebo(measured.comparison, measured.speedup, low <= 1 <= high, pairs, seconds)


def report(found: list[Placebo]) -> Report:
    """Count the outcomes; the promise is that at most one in a hundred is called faster."""
    counts = Counter(one.outcome for one in found)
    known = [one for one in found if one.covers is not None]
    covered, speedups = sum(bool(one.covers) for one in known), [one.speedup or 1.0 for one in known]
    workers = statistics.fmean(one.worker_pairs for one in known) if known else 0.0
    lines = (
        f"  {len(found)} judgings: {', '.join(f'{number} {word}' for word, number in counts.most_common())}",
        f"  called faster: at most {most(counts['faster'], len(found)):.2%} of all such, "
        f"at {SURE:.0%} (promised: at most {MOST_FASTER:.0%} of these)",
        f"  the interval holds 1 in {covered} of {len(known)}: in {least(covered, len(known)):.1%} or more",
        f"  speedups from {min(speedups, default=1.0):.3f} to {max(speedups, default=1.0):.3f}",
        f"  {statistics.median(one.seconds for one in found):.2f} s each in the median, {workers:.1f} worker pairs in "
        "the mean",
    )
    return Report("\n".join(lines), counts["faster"] <= MOST_FASTER * len(found))


def most(count: int, of: int) -> float:
    """Return the largest share of all that leaves a chance of 5 % to see this few (Clopper and Pearson 1934)."""
    if count >= of:
        return 1.0
    low, high = count / of, 1.0
    for _ in range(60):
        share = (low + high) / 2
        term = total = (1 - share) ** of
        for number in range(1, count + 1):
            term *= (of - number + 1) / number * share / (1 - share)
            total += term
        low, high = (share, high) if total > 1 - SURE else (low, share)
    return high


def least(count: int, of: int) -> float:
    """Return the smallest share of all that leaves a chance of 5 % to see this many or more."""
    return 1 - most(of - count, of) if of else 0.0


CARD_COUNT, FEWEST_PROBLEMS = 40, 20
LONG_MS = 0.1
WITHIN, SIGN_P, SIGN_WITHIN = 0.01, 0.05, 0.003
SAME = ("candidate", EAGER, PLACEBO)
"""Sides that run the same program, so that their times differ by the clock alone."""
BUCKETS_US = (5, 10, 50, 200, 1000, 10_000)

X2048, X8192 = "torch.randn({}, 2048)".format, "torch.randn({}, 8192)".format
WEIGHT = "self.weight = torch.nn.Parameter(torch.randn({}))".format
RELU, SOFTMAX = "return torch.relu(inputs[0])", "return torch.softmax(inputs[0], -1)"
PRODUCT, SUM, CUMSUM = "return inputs[0] @ inputs[1]", "return inputs[0].sum(1)", "return torch.cumsum(inputs[0], 1)"
OWN = {
    # About 10 to 100 us.
    "softmax_32mib": (SOFTMAX, X2048(2048)),
    "relu_64mib": (RELU, X2048(4096)),
    "layer_norm_64mib": ("return F.layer_norm(inputs[0], (2048,), self.weight)", X2048(4096), WEIGHT("2048")),
    "cumsum_16mib": (CUMSUM, "torch.rand(256, 8192)"),
    "sum_128mib": (SUM, "torch.randn(8192, 4096)"),
    "product_1024": (PRODUCT, "torch.randn(1024, 1024), torch.randn(1024, 1024)"),
    "product_2048_bf16": (PRODUCT, f"{X2048(2048)}, {X2048(2048)}"),
    "gelu_residual": ("return F.gelu(inputs[0] + self.weight) + inputs[0]", X8192(1024), WEIGHT("8192")),
    "softmax_128mib": (SOFTMAX, X2048(8192)),
    "transposed_128mib": ("return inputs[0].t().contiguous()", "torch.randn(4096, 4096)"),
    # About 100 us to 10 ms; with four of the catalog.
    "relu_1gib": (RELU, X8192(16384)),
    "cumsum_1gib": (CUMSUM, "torch.rand(16384, 8192)"),
    "convolution": (
        "return F.conv2d(inputs[0], self.weight, padding=1)", "torch.randn(32, 64, 112, 112)", WEIGHT("64, 64, 3, 3")),
    "relu_4gib": (RELU, X8192(65536)),
    "sum_4gib": (SUM, "torch.randn(65536, 16384)"),
    "product_6144": (PRODUCT, "torch.randn(6144, 6144), torch.randn(6144, 6144)"),
}  # fmt: skip
"""By name: what `forward` does, its inputs, its constructor. Sizes in names are those of inputs and results in sum."""
NAMES = (*OWN, "softmax_rows", "layer_norm", "matmul_square", "matmul_batched")


def run_on_card(*files: str) -> Report:
    """References against themselves on a GPU, beside a placebo: does the clock favour a side?"""
    kept = Kept("gpu-placebo.jsonl")
    if files:
        return report_on_card(kept.rows(*files))
    if driver.device_count() == 0:
        return NO_DEVICE
    effort = os.environ.get("KERNELWRIGHT_EFFORT", "search")
    settings = JudgeSettings.model_validate({"device": "cuda", "effort": effort})
    each = -(-int(os.environ.get("KERNELWRIGHT_VERDICTS", CARD_COUNT)) // len(NAMES))
    known = Counter(row["problem"] for row in kept.rows())
    for name in [name for word in chosen(NAMES) for name in _named(word)]:
        if known[name] >= each or not is_in_time():
            continue
        with Judge(_problem(name), settings) as judge:
            for _ in range(each - known[name]):
                if is_in_time():
                    kept.add(row := {"problem": name, "effort": settings.effort} | _row(judge))
                    print(f"  {name:20} {_line(row)}", flush=True)
    return report_on_card(kept.rows())


def _named(word: str) -> list[str]:
    if word == "catalog":
        return list(catalog_names())
    if Path(word).is_dir():
        return [f"{word}{SEPARATOR}{entry.id}" for entry in read_collection(Path(word)).entries if entry.problem]
    return [word]


def _problem(name: str) -> Problem:
    if name not in OWN:
        return load_problem(name, "gpu")
    return problem(name, *OWN[name]).model_copy(update={"dtype": "bfloat16" if name.endswith("bf16") else None})


def _row(judge: Judge) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        found = _facts(_against_itself(judge))
    except Exception as error:  # the others are to be seen too
        found = {"outcome": "broken", "why": f"{type(error).__name__}: {error}"}
    return found | {"seconds": round(time.perf_counter() - start, 2)}


def _facts(verdict: Verdict) -> dict[str, Any]:
    """Return samples, places in the order, and the check of the judge's own clock against events."""
    if not isinstance(verdict, Passed):
        return {"outcome": f"failed at {verdict.stage}", "why": verdict.reason}
    measured, on_device = verdict.measurement, verdict.measurement.on_device
    eager, placebo = measured.against(EAGER), measured.placebo
    assert on_device is not None and eager is not None
    events = [ms for ms in on_device.device_ms.get("candidate", ()) if ms is not None]
    check = on_device.check
    return {
        "outcome": measured.comparison,
        "clock": measured.timing_clock,
        "device": on_device.device,
        "candidate_ms": eager.candidate_ms,
        "eager_ms": eager.baseline_ms,
        "workers": eager.workers,
        "placebo_ms": placebo.baseline_ms if placebo else (),
        "placebo_eager_ms": placebo.candidate_ms if placebo else (),
        "placebo_workers": placebo.workers if placebo else (),
        "device_ms": on_device.device_ms,
        "positions": on_device.positions,
        "dropped": on_device.dropped,
        "stages": verdict.evidence.seconds,
        "events_ms": statistics.median(events) if events else None,
        "check": check
        and check.model_dump() | {"time_ms": check.time_ms, "least_ms": check.least_ms, "most_ms": check.most_ms},
    }


def _line(row: dict[str, Any]) -> str:
    if "eager_ms" not in row:
        return f"{row['seconds']:6.1f} s {row['outcome']}: {row['why'][:300]}"
    mine, again = (f"{math.expm1(side(row) or 0):+.2%}" for side in SIDES.values())
    events, check = row["events_ms"], row["check"]
    clock = f"{check['method']} {check['time_ms']:.4f} ms" if check else "no check"
    return (
        f"{row['seconds']:6.1f} s {row['outcome']:9} eager {statistics.median(row['eager_ms']):.4f} ms by "
        f"{row['clock']}, candidate {mine}, placebo {again}, {f'events {events:.4f} ms, ' if events else ''}{clock} "
        f"{row['dropped'] or ''}"
    )


def _mean_log(numerator: list[float], denominator: list[float]) -> float | None:
    pairs = list(zip(numerator, denominator, strict=True))
    return statistics.fmean(math.log(n / d) for n, d in pairs) if pairs else None


SIDES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "candidate": lambda row: _mean_log(row["candidate_ms"], row["eager_ms"]),
    "placebo": lambda row: _mean_log(row["placebo_ms"], row["placebo_eager_ms"]),
}
"""Of a verdict, the mean log ratio of each side's times to the baseline's; None where it was not measured."""


class Line(NamedTuple):
    """A fact of the report, and whether it is as it must be."""

    text: str
    holds: bool

    def __str__(self) -> str:
        return f"  {'ok  ' if self.holds else 'FAIL'} {self.text}"


def report_on_card(rows: list[dict[str, Any]]) -> Report:
    """Summarise all verdicts. Ratios are of times: above 1 a side takes longer than the baseline."""
    timed = [row for row in rows if "eager_ms" in row]
    problems, outcomes = {row["problem"] for row in timed}, Counter(row["outcome"] for row in rows)
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    enough = len(timed) == len(rows) >= CARD_COUNT and len(problems) >= FEWEST_PROBLEMS
    lines = [Line(f"{len(rows)} verdicts over {len(problems)} problems: {said or 'none'}", enough)]
    for name, side in SIDES.items():
        for span, is_long in (("under 100 us", False), ("over 100 us", True)):
            found = [
                (row["problem"], value)
                for row in timed
                if (statistics.median(row["eager_ms"]) >= LONG_MS) == is_long and (value := side(row)) is not None
            ]
            lines += _span_lines(f"{name}, {span}", found)
    lines += _position_lines(timed)
    return Report("\n".join(map(str, [*lines, *error_lines(timed)])), all(line.holds for line in lines))


def _span_lines(name: str, found: list[tuple[str, float]]) -> list[Line]:
    """Test problems and mean log ratios of their verdicts: the interval of the mean ratio, and the signs."""
    if not found:
        return [Line(f"{name}: no verdict", False)]
    low, high = interval_by_problem(found)
    mean = statistics.fmean(value for _, value in found)
    p = sign_test(sum(value > 0 for _, value in found), sum(value < 0 for _, value in found))
    return [
        Line(
            f"{name}: {len(found)} verdicts, mean {math.exp(mean):.4f}, 95 % [{math.exp(low):.4f}, "
            f"{math.exp(high):.4f}] (wanted: within {WITHIN:.0%} of 1)",
            -math.log1p(WITHIN) <= low and high <= math.log1p(WITHIN),
        ),
        Line(
            f"{name}: sign test p = {p:.3f} at a mean of {math.expm1(mean):+.2%} (wanted: no p < {SIGN_P:g} beyond "
            f"{SIGN_WITHIN:.1%})",
            p >= SIGN_P or abs(mean) <= SIGN_WITHIN,
        ),
    ]


def _position_lines(rows: list[dict[str, Any]]) -> list[Line]:
    """Compare each position's samples with the mean of their verdict, over the sides that run the same program."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        samples = [
            (position, math.log(ms))
            for side in SAME
            for position, ms in zip(
                (row["positions"] or {}).get(side, ()), row["device_ms"].get(side, ()), strict=False
            )
            if ms
        ]
        middle = statistics.fmean(log for _, log in samples) if samples else 0.0
        for position, log in samples:
            found[position].append(log - middle)
    if not found:
        return [Line("positions: the records do not hold them", False)]
    return [
        Line(
            f"position {position}: {len(logs)} samples, mean {math.expm1(statistics.fmean(logs)):+.2%}, median "
            f"{math.expm1(statistics.median(logs)):+.2%} (wanted: a mean within {WITHIN:.0%})",
            abs(statistics.fmean(logs)) <= math.log1p(WITHIN),
        )
        for position, logs in sorted(found.items())
    ]


def error_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Say by length of the call how much longer than events the judge's clock is: median, deviation, extremes."""
    lines = []
    for method in ("chain", "calls"):
        found: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            if row.get("check") and row["check"]["method"] == method and row["events_ms"]:
                us = 1e3 * row["events_ms"]
                nearest = min(BUCKETS_US, key=lambda bucket: abs(math.log(us / bucket)))
                found[nearest].append(1e3 * row["check"]["time_ms"] - us)
        lines += [
            f"       judge's clock by {method}, calls of about {bucket} us: {statistics.median(over):+.1f} us more, "
            f"sd {statistics.pstdev(over):.1f}, from {min(over):+.1f} to {max(over):+.1f}, {len(over)} verdicts"
            for bucket, over in sorted(found.items())
        ]
    return lines
