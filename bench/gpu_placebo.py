"""References against themselves on a device, side by side with a placebo: does the judge's clock favour a side?

`python -m bench gpu_placebo` judges 20 problems from 10 us to 10 ms, small and of several GiB, each reference as its
own candidate. A line of JSON a verdict goes to `gpu-placebo.jsonl` in the folder that `KERNELWRIGHT_OUT` names, or in
`runs`. What is there is not judged again, so a run may be stopped at any time. `python -m bench gpu_placebo FILE...`
judges nothing and reports on the files.

`KERNELWRIGHT_VERDICTS` is how many verdicts all problems together are to have (40), `KERNELWRIGHT_EFFORT` their effort
(search), `KERNELWRIGHT_BENCH=NAME,NAME` picks problems, also of the catalog or all of that as `catalog`, and
`KERNELWRIGHT_SECONDS` ends the run in time.
"""

import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.chosen import Kept, chosen, is_in_time
from bench.gpu_facts import NO_DEVICE, Report
from bench.placebo import itself
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.timing.samples import PLACEBO
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import EAGER, Candidate, Measurement, Passed, Verdict
from kernelwright_child import driver
from tests.gpu.honest import problem

COUNT, FEWEST_PROBLEMS = 40, 20
LONG_MS = 0.1
WITHIN, SIGN_P, SIGN_WITHIN = 0.01, 0.05, 0.003
RESAMPLES = 10_000
KEPT = "gpu-placebo.jsonl"
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


def run(*files: str) -> Report:
    """A line a verdict, then the report on all that are kept."""
    kept = Kept(KEPT)
    if files:
        return report(kept.rows(*files))
    if driver.device_count() == 0:
        return NO_DEVICE
    effort = os.environ.get("KERNELWRIGHT_EFFORT", "search")
    settings = Settings.model_validate({"device": "cuda", "effort": effort})
    each = -(-int(os.environ.get("KERNELWRIGHT_VERDICTS", COUNT)) // len(NAMES))
    known = Counter(row["problem"] for row in kept.rows())
    for name in [one for word in chosen(NAMES) for one in (catalog_names() if word == "catalog" else (word,))]:
        if known[name] >= each or not is_in_time():
            continue
        with Judge(_problem(name), settings) as judge:
            for _ in range(each - known[name]):
                if is_in_time():
                    kept.add(row := {"problem": name, "effort": settings.effort} | judged(judge))
                    print(f"  {name:20} {told(row)}", flush=True)
    return report(kept.rows())


def _problem(name: str) -> Problem:
    if name not in OWN:
        return load_problem(name, "gpu")
    return problem(name, *OWN[name]).model_copy(update={"dtype": "bfloat16" if name.endswith("bf16") else None})


def judged(judge: Judge) -> dict[str, Any]:
    """What is kept of the verdict on the reference as its own candidate."""
    start = time.perf_counter()
    try:
        found = facts(judge.judge(Candidate(source=itself(judge.problem.source))))
    except Exception as error:  # the others are to be seen too
        found = {"outcome": "broken", "why": f"{type(error).__name__}: {error}"}
    return found | {"seconds": round(time.perf_counter() - start, 2)}


def facts(verdict: Verdict) -> dict[str, Any]:
    """The samples of a verdict, and what the judge's own clock told."""
    if not isinstance(verdict, Passed):
        return {"outcome": f"failed at {verdict.stage}", "why": verdict.reason}
    measured, on_device = verdict.measurement, verdict.measurement.on_device
    eager, placebo = measured.against(EAGER), measured.placebo
    assert on_device is not None and eager is not None
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
        "positions": getattr(on_device, "positions", None),
        "dropped": on_device.dropped,
        "stages": verdict.evidence.seconds,
    } | clock_facts(measured)


def clock_facts(measured: Measurement) -> dict[str, Any]:
    """The candidate's time by events, and the check of the judge's own clock."""
    assert measured.on_device is not None
    events = [ms for ms in measured.on_device.device_ms.get("candidate", ()) if ms is not None]
    check = measured.on_device.check
    return {
        "events_ms": statistics.median(events) if events else None,
        "check": None
        if check is None
        else check.model_dump() | {"time_ms": check.time_ms, "least_ms": check.least_ms, "most_ms": check.most_ms},
    }


def shown_clock(row: dict[str, Any]) -> str:
    """What `clock_facts` gives, for people."""
    events, check = row["events_ms"], row["check"]
    shown = f"{check['method']} {check['time_ms']:.4f} ms" if check else "no check"
    return f"events {events:.4f} ms, {shown}" if events else shown


def told(row: dict[str, Any]) -> str:
    """One row for people."""
    if "eager_ms" not in row:
        return f"{row['seconds']:6.1f} s {row['outcome']}: {row['why'][:300]}"
    mine, again = (f"{math.expm1(side(row) or 0):+.2%}" for side in SIDES.values())
    return (
        f"{row['seconds']:6.1f} s {row['outcome']:9} eager {statistics.median(row['eager_ms']):.4f} ms by "
        f"{row['clock']}, candidate {mine}, placebo {again}, {shown_clock(row)} {row['dropped'] or ''}"
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
    """One fact of the report, and whether it is as it must be."""

    text: str
    holds: bool

    def __str__(self) -> str:
        return f"  {'ok  ' if self.holds else 'FAIL'} {self.text}"


def report(rows: list[dict[str, Any]]) -> Report:
    """What all verdicts say in sum. Ratios are of times: above 1 a side takes longer than the baseline."""
    timed = [row for row in rows if "eager_ms" in row]
    problems, outcomes = {row["problem"] for row in timed}, Counter(row["outcome"] for row in rows)
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    enough = len(timed) == len(rows) >= COUNT and len(problems) >= FEWEST_PROBLEMS
    lines = [Line(f"{len(rows)} verdicts over {len(problems)} problems: {said or 'none'}", enough)]
    for name, side in SIDES.items():
        for span, is_long in (("under 100 us", False), ("over 100 us", True)):
            found = [
                (row["problem"], value)
                for row in timed
                if (statistics.median(row["eager_ms"]) >= LONG_MS) == is_long and (value := side(row)) is not None
            ]
            lines += span_lines(f"{name}, {span}", found)
    lines += position_lines(timed)
    return Report("\n".join(map(str, [*lines, *error_lines(timed)])), all(line.holds for line in lines))


def span_lines(name: str, found: list[tuple[str, float]]) -> list[Line]:
    """The interval of the mean ratio, and the sign test, for problems and mean log ratios of verdicts."""
    if not found:
        return [Line(f"{name}: no verdict", False)]
    low, high = interval(found)
    mean = statistics.fmean(value for _, value in found)
    within = -math.log1p(WITHIN) <= low and high <= math.log1p(WITHIN)
    p = sign_p([value for _, value in found])
    return [
        Line(
            f"{name}: {len(found)} verdicts, mean {math.exp(mean):.4f}, 95 % [{math.exp(low):.4f}, "
            f"{math.exp(high):.4f}] (wanted: within {WITHIN:.0%} of 1)",
            within,
        ),
        Line(
            f"{name}: sign test p = {p:.3f} at a mean of {math.expm1(mean):+.2%} (wanted: no p < {SIGN_P:g} beyond "
            f"{SIGN_WITHIN:.1%})",
            p >= SIGN_P or abs(mean) <= SIGN_WITHIN,
        ),
    ]


def interval(found: list[tuple[str, float]]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean over verdicts, in logs; whole problems are drawn, by a fixed seed."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for name, value in found:
        by_problem[name].append(value)
    sums = np.array([sum(values) for values in by_problem.values()])
    counts = np.array([len(values) for values in by_problem.values()])
    drawn = np.random.RandomState(0).randint(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def sign_p(values: list[float]) -> float:
    """The two-sided sign test: how likely so uneven signs are where neither is favoured. Zeros do not count."""
    above, below = sum(value > 0 for value in values), sum(value < 0 for value in values)
    tail = sum(math.comb(above + below, k) for k in range(min(above, below) + 1)) / 2 ** (above + below)
    return min(1.0, 2 * float(tail))


def position_lines(rows: list[dict[str, Any]]) -> list[Line]:
    """The mean of each position's samples against that of its verdict, over the sides that run the same program."""
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
        return [Line("positions: the records do not tell them", False)]
    return [
        Line(
            f"position {position}: {len(logs)} samples, mean {math.expm1(statistics.fmean(logs)):+.2%}, median "
            f"{math.expm1(statistics.median(logs)):+.2%} (wanted: a mean within {WITHIN:.0%})",
            abs(statistics.fmean(logs)) <= math.log1p(WITHIN),
        )
        for position, logs in sorted(found.items())
    ]


def error_lines(rows: list[dict[str, Any]]) -> list[str]:
    """By length of the call, what the judge's clock says more than events: median, deviation and extremes in us."""
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
