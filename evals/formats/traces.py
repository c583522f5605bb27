"""Traces of FlashInfer-Trace and SOL-ExecBench: what a solution did on a workload."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from kernelwright.evals.formats.samples import Outcome
from kernelwright.evals.formats.solutions import solution_name
from kernelwright.problems.formats.definition import FlashInferTrace, Workload
from kernelwright.sandbox.verdict.verdicts import Passed

STATUS = {
    "scan": "COMPILE_ERROR",
    "build": "COMPILE_ERROR",
    "load": "RUNTIME_ERROR",
    "run": "RUNTIME_ERROR",
    "check": "INCORRECT_NUMERICAL",
    "time": "RUNTIME_ERROR",
}
"""Their word for each stage at which a candidate fails."""
UNKNOWN_ERROR = {"max_relative_error": "NaN", "max_absolute_error": "NaN"}
"""They want a largest error wherever values were compared; a verdict does not keep one, and NaN is what they allow."""


def trace_of(outcome: Outcome) -> FlashInferTrace:
    """The trace of one verdict; the problem must come from a workload."""
    origin = outcome.problem.origin
    assert origin is not None, "only problems with a workload have traces"
    return FlashInferTrace(
        definition=origin.title,
        workload=Workload.model_validate(origin.details["workload"]),
        solution=solution_name(outcome.sample, outcome.problem),
        evaluation=_evaluation(outcome),
    )


def _evaluation(outcome: Outcome) -> dict[str, Any]:
    """Correctness stands exactly where values were compared, performance exactly where the candidate passed."""
    verdict = outcome.verdict
    time = outcome.time or datetime.now(UTC)
    found: dict[str, Any] = {
        "status": "PASSED" if isinstance(verdict, Passed) else STATUS[verdict.stage],
        "environment": {"hardware": outcome.device, "libs": dict(verdict.evidence.versions)},
        "timestamp": time.isoformat(),
        "log": "" if isinstance(verdict, Passed) else "\n".join(filter(None, (verdict.reason, verdict.log))),
        "correctness": None,
        "performance": None,
    }
    if found["status"] in ("PASSED", "INCORRECT_NUMERICAL"):
        found["correctness"] = dict(UNKNOWN_ERROR)
    if isinstance(verdict, Passed):
        measurement = verdict.measurement
        found["environment"]["libs"]["timing_clock"] = measurement.timing_clock
        found["performance"] = {
            "latency_ms": measurement.candidate_ms,
            "reference_latency_ms": measurement.baselines_ms[measurement.closest.baseline],
            "speedup_factor": measurement.speedup,
        }
    return found


def traces_text(traces: Iterable[FlashInferTrace]) -> str:
    """The traces as JSON lines."""
    return "".join(json.dumps(trace.as_json()) + "\n" for trace in traces)
