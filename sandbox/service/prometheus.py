"""The service's figures in the form that Prometheus reads."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kernelwright.sandbox.service.job_queue import JobQueue
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

OUTCOMES = ("passed", "failed", "error", "cancelled")
STAGES = ("build", "check", "time")


def metrics_text(queue: JobQueue, late: Counter[str]) -> str:
    """All of them; `late` counts connections that were ended for being slow."""
    counts, places = queue.counts, queue.places
    stages: dict[str, Counter[str]] = {"begun": Counter(), "ended": Counter(), "lost": Counter()}
    busy: dict[str, float] = {}
    for name, place in places.items():
        for what, counter in stages.items():
            counter.update(getattr(place.tally, what))
        busy |= {f"{name} {device.name}": place.tally.busy_s.get(device.name, 0.0) for device in place.devices}
    parts = [
        _metric("service_info", "gauge", "The judge that answers.", {f'judge_version="{JUDGE_VERSION}"': 1}),
        _metric("jobs_accepted_total", "counter", "Jobs taken since the start.", {"": counts.accepted}),
        _metric("jobs_total", "counter", "Jobs that ended.", _by("outcome", counts.ended, OUTCOMES)),
        _metric("refused_total", "counter", "Requests refused.", _by("reason", counts.refused + late)),
        _metric("jobs_open", "gauge", "Jobs that have not ended.", {"": queue.open_jobs}),
        _metric("jobs_judging", "gauge", "Of these, those that were taken up.", {"": queue.running}),
        _metric("queue_limit", "gauge", "How many may be open.", {"": queue.limit}),
        _metric("judging_seconds_total", "counter", "From taking a job up to its end.", {"": counts.judged_s}),
        *(
            _metric(f"stages_{what}_total", "counter", f"Stages {what}.", _by("stage", c, STAGES))
            for what, c in stages.items()
        ),
        _metric("device_busy_seconds_total", "counter", "Time that a device was in use.", _by("device", busy)),
        _metric("draining", "gauge", "Whether it is about to end.", {"": int(queue.draining)}),
        "# TYPE process_resident_memory_bytes gauge\n" + f"process_resident_memory_bytes {resident_bytes()}\n",
    ]
    return "".join(parts)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _by(label: str, values: Mapping[str, float], always: tuple[str, ...] = ()) -> dict[str, float]:
    return {f'{label}="{_escaped(name)}"': values.get(name, 0) for name in dict.fromkeys((*always, *sorted(values)))}


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _metric(name: str, kind: str, words: str, values: Mapping[str, float]) -> str:
    head = f"# HELP kernelwright_{name} {words}\n# TYPE kernelwright_{name} {kind}\n"
    lines = (
        f"kernelwright_{name}{'{' + labels + '}' if labels else ''} {value:g}\n" for labels, value in values.items()
    )
    return head + "".join(lines)
