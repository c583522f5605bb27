"""Every catalog problem at size gpu, its reference against itself: placebo, both clocks, floor.

`python -m bench gpu_catalog` judges each reference as a candidate. It must never be found faster than itself, and the
placebo of calls above 50 microseconds must straddle 1 within 1 %. `KERNELWRIGHT_BENCH=NAME,NAME` picks problems.
"""

import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.chosen import chosen
from bench.gpu_facts import NO_DEVICE, Report
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.calls.device import first_device
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.statistics import Interval
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Measurement
from kernelwright_child.gpu import driver

SETTINGS = Settings(device="cuda", worker_pairs=3, min_pairs=12, max_pairs=24, interval_target=0.01, time_budget_s=6)
LONG_MS, WITHIN = 0.05, 0.01
HEADER = (
    f"{'problem':36} {'clock':6} {'self':>6} {'interval':>16} {'placebo':>16} {'bound':>8} {'events':>8} {'burst':>8} "
    f"{'over':>6} {'protocol':>8} {'floor':>8} {'of floor':>8} {'s':>5}"
)


def run() -> Report:
    """One line for each problem, then what did not hold."""
    if driver.device_count() == 0:
        return NO_DEVICE
    broken: list[str] = []
    rows: list[dict[str, Any]] = []
    print(HEADER)
    for name in chosen(catalog_names()):
        start = time.perf_counter()
        try:
            found = itself(load_problem(name, "gpu"))
        except Exception:  # the others are to be seen too
            traceback.print_exc(limit=-4, file=sys.stdout)
            broken.append(name)
            continue
        if isinstance(found, Failed):
            print(f"{name:36} failed at {found.stage}: {found.reason[:200]}", flush=True)
            broken.append(name)
            continue
        row = facts(found.measurement)
        rows.append({"problem": name, "seconds": found.evidence.seconds} | row)
        print(f"{name:36} {line(row)} {time.perf_counter() - start:5.1f}", flush=True)
        broken += [] if row["holds"] else [name]
    _keep(rows)
    return Report(
        f"{len(rows)} problems; placebo off, found faster or not judged: {', '.join(broken) or 'none'}", not broken
    )


def itself(problem: Problem) -> Any:
    """The verdict on the problem's own reference, as a candidate."""
    source = f"{problem.source}\n\nModelNew = Model\n"
    with Judge(problem, SETTINGS) as judge:
        return judge.judge(Candidate(source=source))


def facts(measurement: Measurement) -> dict[str, Any]:
    """The figures of one row."""
    told, placebo = measurement.on_device, measurement.placebo
    assert told is not None and placebo is not None
    events = [ms for ms in told.device_ms["candidate"] if ms is not None]
    bound = statistics.median(told.bound_ms["candidate"])
    device = statistics.median(events) if events else None
    long = measurement.candidate_ms < LONG_MS or (_holds(measurement.interval) and _holds(placebo.interval))
    return {
        "clock": measurement.clock,
        "speedup": measurement.speedup,
        "interval": [measurement.interval.low, measurement.interval.high],
        "placebo": [placebo.interval.low, placebo.interval.high],
        "bound_ms": bound,
        "device_ms": device,
        "burst_ms": told.burst.call_ms if told.burst else None,
        "burst_calls": told.burst.calls if told.burst else None,
        "burst_device_ms": told.burst.device_ms if told.burst else None,
        "burst_bound_ms": told.burst.bound_ms if told.burst else None,
        "over": told.burst.call_ms / device if told.burst and device else None,
        "protocol_ms": statistics.median(measurement.protocol_ms),
        "floor_ms": measurement.floor_ms,
        "fraction_of_floor": measurement.fraction_of_floor,
        "samples": len(measurement.closest.candidate_ms),
        "dropped": told.dropped,
        "comparison": measurement.comparison,
        "holds": long and measurement.comparison != "faster",
    }


def line(row: dict[str, Any]) -> str:
    """The figures as columns."""

    def show(value: float | None, digits: int = 4) -> str:
        return f"{value:8.{digits}f}" if value is not None else f"{'-':>8}"

    spans = " ".join(f"[{low:.4f}, {high:.4f}]" for low, high in (row["interval"], row["placebo"]))
    figures = " ".join(show(row[key]) for key in ("bound_ms", "device_ms", "burst_ms"))
    over = f"{row['over']:6.3f}" if row["over"] else f"{'-':>6}"
    rest = " ".join(show(row[key]) for key in ("protocol_ms", "floor_ms", "fraction_of_floor"))
    mark = "" if row["holds"] else " OFF"
    return f"{row['clock']:6} {row['speedup']:6.4f} {spans} {figures} {over} {rest}{mark} {row['dropped'] or ''}"


def _holds(interval: Interval) -> bool:
    return interval.low <= 1 + WITHIN and interval.high >= 1 / (1 + WITHIN)


def _keep(rows: list[dict[str, Any]]) -> None:
    """The figures as JSON where `KERNELWRIGHT_OUT` names a folder."""
    if folder := os.environ.get("KERNELWRIGHT_OUT"):
        told = {"device": first_device().name, "driver": driver.driver_version(), "rows": rows}
        (Path(folder) / "gpu_catalog.json").write_text(json.dumps(told, indent=1))
