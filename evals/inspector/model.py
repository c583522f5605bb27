"""What the pages show, as plain data: an index of a run or a score, and each attempt in detail. Read from the log."""

import math
import re
import shlex
from pathlib import Path
from typing import Any, Literal

from kernelwright.agent.log.best import JUDGE_AGAIN, PROBLEM, device_option
from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.replies import NotExtracted
from kernelwright.evals.figures import BASELINES, kernel_label, measured
from kernelwright.evals.report import ending_words
from kernelwright.evals.scores.scoring import level_of
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import manifest_text
from kernelwright.sandbox.verdict.report import counted_speedup, report, speedup_words, verdict_words
from kernelwright.sandbox.verdict.verdicts import Pairing, Passed, Verdict

Data = dict[str, Any]
ProblemText = Literal["reference", "manifest"]
"""Of a problem written as a folder: `reference.py` and `problem.toml`."""
SIDES = ("best", *BASELINES)
SAMPLE_DIGITS = 4
"""Of the samples that are plotted; the log has them whole."""


class RunModel:
    """One run, read anew when it has grown. An attempt's interval is derived once, in some 2 ms."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.problems = {name: log.problem(name) for name in log.header.problems}
        self.views = {name: View(problem=name) for name in self.problems}
        self._last = 0
        self.refresh()

    def refresh(self) -> bool:
        before = self._last
        for event in self.log.events(after=before):
            self._last = event.seq
            if event.problem in self.views:
                self.views[event.problem] = self.views[event.problem].after(event)
        return self._last > before

    def index(self) -> Data:
        header = self.log.header
        search = header.config.get("search", header.config)
        search = search if isinstance(search, dict) else {}
        return {
            "run": {
                "id": header.run_id,
                "started": header.started.isoformat(timespec="seconds"),
                "device": header.device,
                "versions": header.versions,
                "commit": header.commit,
                "config": header.config,
                "model": str(search.get("model", "unknown")),
                "strategy": str(search.get("strategy", "unknown")),
                "target": str(search.get("target", "unknown")),
                "left_out": header.config.get("left_out") or [],
            },
            "problems": [self._problem(name, problem) for name, problem in self.problems.items()],
        }

    def _problem(self, name: str, problem: Problem) -> Data:
        view = self.views[name]
        best = view.best
        verdict = _passed(best) if best else None
        found = measured(verdict) if verdict else None
        statuses = [_weak(one.verdict) for one in view.attempts if one.verdict]
        shown = ("title", "family", "size", "digest", "precision", "operators", "direction")
        return {field: getattr(problem, field) for field in shown} | {
            "name": name,
            "level": level_of(name),
            "stopped": ending_words(view) or None,
            "fault": view.fault,
            "weak": next((status for status in statuses if status is not None), None),
            "best": best.number if best else None,
            "speedups": {side: found and found.against(side) for side in SIDES} | {"against": found and found.counted},
            "said": {side: verdict and _said(verdict, side) for side in SIDES},
            "counted": {side: found and _rounded(found.counting(side)) for side in SIDES},
            "baselines": found.baselines_ms if found else {},
            "floor": found and found.floor_ms,
            "manifest": manifest_text(problem),
            "attempts": [_summary(attempt) | {"auth": self._label(problem, attempt)} for attempt in view.attempts],
        }

    def _label(self, problem: Problem, attempt: Attempt) -> str | None:
        if attempt.ruling is None or attempt.candidate is None:
            return None
        return kernel_label(attempt.ruling, self.log.text(attempt.candidate.digest), problem)

    def detail(self, name: str, number: int) -> Data:
        """All of one attempt. Raises `RunLogError` where the run has no such problem or attempt."""
        self.log.problem(name)  # raises where there is none
        attempt = attempt_of(self.views[name], number)
        reply = self.log.reply(attempt.reply_digest) if attempt.reply_digest else None
        candidate = attempt.candidate
        facts = attempt.reply
        usage = facts.usage.model_dump(exclude={"raw"}) if facts else {}
        why = attempt.extraction if isinstance(attempt.extraction, NotExtracted) else None
        sections = self.log.prompt(attempt.prompt).sections
        shown = ("name", "stable", "tokens", "text")
        return _judged(attempt.ruling) | {
            "source": self.log.text(candidate.digest) if candidate else None,
            "language": candidate.language if candidate else None,
            "how": candidate.how if candidate else None,
            "warnings": list(candidate.warnings) if candidate else [],
            "why": why.model_dump() if why else None,
            "reply": reply.text if reply else None,
            "reasoning": reply.reasoning if reply else None,
            "usage": usage,
            "latency_s": facts.latency_s if facts else None,
            "finish_reason": facts.finish_reason if facts else None,
            "provider": facts.provider if facts else None,
            "reply_model": facts.model if facts else None,
            "note": facts.note if facts else "",
            "sections": [{key: getattr(one, key) for key in shown} for one in sections],
            "parent": attempt.ask.parent,
            "same_as": attempt.same_as,
            "first": verdict_words(attempt.verdict).replace(" x ", " \u00d7 ")
            if attempt.verdict and attempt.confirmed
            else None,
            "reproduce": reproduction(self.log.folder, name, attempt) if candidate else None,
        }


def reproduction(folder: Path, problem: str, attempt: Attempt) -> str:
    """Commands that judge an attempt again, by all rules of its problem, on any machine that has the run.

    The last one needs no run: both texts of the problem are in the pages, so who has them alone can write the folder.
    """
    show, name = f"kernelwright show {shlex.quote(str(folder))}", shlex.quote(problem)
    return "\n".join(
        [
            f"mkdir -p {PROBLEM}",
            f"{show} {name}/reference > {PROBLEM}/reference.py",
            f"{show} {name}/manifest > {PROBLEM}/problem.toml",
            f"{show} {name}/{attempt.number} > candidate.py",
            JUDGE_AGAIN + device_option(attempt.ruling),
        ]
    )


def attempt_of(view: View, number: int) -> Attempt:
    """The attempt of that number; `RunLogError`, for a user who asked for it, where there is none."""
    if not 1 <= number <= len(view.attempts):
        there = f"1 to {len(view.attempts)}" if view.attempts else "none yet"
        raise RunLogError(f"problem {view.problem!r} has no attempt {number}; there are: {there}")
    return view.attempt(number)


def source_of(log: RunLog, problem: str, what: int | ProblemText) -> str | None:
    """The source of an attempt's candidate, None where its reply held none; or a text of the problem.

    Raises `RunLogError` where the run has no such problem or attempt.
    """
    asked = log.problem(problem)
    if what == "reference":
        return asked.source
    if what == "manifest":
        return manifest_text(asked)
    candidate = attempt_of(fold(problem, log.events(problem)), what).candidate
    return log.text(candidate.digest) if candidate else None


def _passed(attempt: Attempt) -> Passed | None:
    return attempt.ruling if isinstance(attempt.ruling, Passed) else None


def _said(verdict: Passed, side: str) -> str | None:
    """The speedup against a baseline in words, with its interval and what is in doubt."""
    found = verdict.measurement
    pairing = found.against(BASELINES[side]) if side in BASELINES else found.closest
    return speedup_words(verdict, pairing).replace(" x", " \u00d7", 1) if pairing else None


def _weak(verdict: Verdict) -> list[str] | None:
    status = verdict.evidence.problem_status
    return None if status is None else list(status.why) if status.status == "weak" else []


def _summary(attempt: Attempt) -> Data:
    verdict = _passed(attempt)
    found = verdict.measurement if verdict else None
    costs = [reply.usage.cost_usd for reply in attempt.replies]
    tokens = [one for reply in attempt.replies for one in (reply.usage.input_tokens, reply.usage.output_tokens)]
    return {
        "n": attempt.number,
        "role": attempt.ask.role,
        "parent": attempt.ask.parent,
        "idea": attempt.ask.idea,
        "model": attempt.ask.model,
        "outcome": attempt.outcome,
        "speedup": found and _rounded(found.speedup),
        "speedup_any": found and _rounded(found.speedup_any),
        "counted": found and _rounded(counted_speedup(found.speedup, found.comparison)),
        "marks": attempt.marks,
        "timing_clock": found and found.timing_clock,
        "ms": found and _rounded(found.candidate_ms),
        "cost": None if None in costs else round(sum(cost for cost in costs if cost is not None), 8),
        "tokens": None if None in tokens else sum(one for one in tokens if one is not None),
    }


def _judged(verdict: Verdict | None) -> Data:
    keys = (
        "outcome", "stage", "reason", "log", "speedup", "comparison", "against", "candidate_ms", "baselines_ms",
        "floor_ms", "speedup_any", "timing_clock", "times", "launch_bound", "less_accurate",
    )  # fmt: skip
    if verdict is None:
        empty = dict.fromkeys((*keys, "low", "high", "evidence"))
        return empty | {"speedups": {}, "pairings": []}
    found = report(verdict)
    pairings = verdict.measurement.pairings if isinstance(verdict, Passed) else ()
    evidence = verdict.evidence
    return {name: found[name] for name in keys} | {
        "low": found["speedup_low"],
        "high": found["speedup_high"],
        "speedups": found["speedups"] or {},
        "pairings": [_samples(one) for one in pairings],
        "evidence": {
            "authenticity": evidence.authenticity.label,
            "remarks": list(evidence.authenticity.evidence),
            "jail": list(evidence.jail),
            "deterministic": found.get("deterministic"),
            "without": found.get("without") or [],
            "seconds": evidence.seconds,
            "versions": evidence.versions,
        },
    }


def _samples(pairing: Pairing) -> Data:
    return {
        "baseline": pairing.baseline,
        "candidate_ms": [_rounded(ms) for ms in pairing.candidate_ms],
        "baseline_ms": [_rounded(ms) for ms in pairing.baseline_ms],
    }


def _rounded(value: float | None) -> float | None:
    return value if value is None or not math.isfinite(value) else float(f"{value:.{SAMPLE_DIGITS}g}")


def find_attempt(text: str) -> tuple[str, int | ProblemText] | None:
    """`rms_norm/3` as problem and number, `rms_norm/reference` and `rms_norm/manifest`; None for anything else."""
    match = re.fullmatch(r"(.+)/(\d+|reference|manifest)", text)
    if match is None:
        return None
    name, what = match.groups()
    return name, "reference" if what == "reference" else "manifest" if what == "manifest" else int(what)
