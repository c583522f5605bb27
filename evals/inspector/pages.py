"""A run or a score as one HTML file that needs nothing else, and the data and the page of both views.

The data are an index of the run and each attempt in detail, read from its log.
"""

import base64
import gzip
import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kernelwright.agent.log.best import JUDGE_AGAIN, PROBLEM, device_option
from kernelwright.agent.log.events import RunLogError
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.replies import NotExtracted
from kernelwright.agent.steering import known_sum
from kernelwright.evals.metrics import BASELINES, kernel_label, level_of, summarize, total_cost, weak_of
from kernelwright.evals.plots import picture
from kernelwright.evals.report import ending_words
from kernelwright.evals.verdict_store import log_of, search_of
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import manifest_text
from kernelwright.sandbox.verdict.report import counted_speedup, report, speedup_words, verdict_words
from kernelwright.sandbox.verdict.verdicts import Pairing, Passed, Verdict

Data = dict[str, Any]
ProblemText = Literal["reference", "manifest"]
"""Of a problem written as a folder: `reference.py` and `problem.toml`."""
SIDES = ("best", *BASELINES)
SAMPLE_DIGITS = 4
"""Of the samples that are plotted; the log has all digits."""


class RunModel:
    """The data of a run or a score; `refresh` reads what the log has got since."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.problems = {name: log.problem(name) for name in log.header.problems}
        self.views = {name: View(problem=name) for name in self.problems}
        self._last = 0
        self.refresh()

    def refresh(self) -> None:
        for event in self.log.events(after=self._last):
            self._last = event.seq
            if event.problem in self.views:
                self.views[event.problem] = self.views[event.problem].after(event)

    def index(self) -> Data:
        header = self.log.header
        return {
            "run": {
                "id": header.run_id,
                "started": header.started.isoformat(timespec="seconds"),
                "device": header.device,
                "versions": header.versions,
                "commit": header.commit,
                "config": header.config,
                **search_of(header),
                "left_out": header.config.get("left_out") or [],
            },
            "problems": [self._problem(name, problem) for name, problem in self.problems.items()],
        }

    def _problem(self, name: str, problem: Problem) -> Data:
        view = self.views[name]
        best = view.best
        verdict = _passed(best) if best else None
        found = summarize(verdict) if verdict else None
        statuses = [weak_of(one.verdict) for one in view.attempts if one.verdict]
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
        """Return all of one attempt. Raises `RunLogError` where the run has no such problem or attempt."""
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
    """Return commands that judge an attempt again, by all rules of its problem, on any machine that has the run.

    The last one needs no run: both texts of the problem are in the pages.
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
    """Return the attempt of that number. Raises `RunLogError` where there is none."""
    if not 1 <= number <= len(view.attempts):
        there = f"1 to {len(view.attempts)}" if view.attempts else "none yet"
        raise RunLogError(f"problem {view.problem!r} has no attempt {number}; there are: {there}")
    return view.attempt(number)


def source_of(log: RunLog, problem: str, what: int | ProblemText) -> str | None:
    """Return the source of an attempt's candidate, None without one; or a text of the problem.

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
    """Return the speedup against a baseline in words, with its interval and its doubts."""
    found = verdict.measurement
    pairing = found.against(BASELINES[side]) if side in BASELINES else found.closest
    return speedup_words(verdict, pairing).replace(" x", " \u00d7", 1) if pairing else None


def _summary(attempt: Attempt) -> Data:
    verdict = _passed(attempt)
    found = verdict.measurement if verdict else None
    usages = [reply.usage for reply in attempt.replies]
    cost = total_cost([usage.cost_usd for usage in usages])
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
        "cost": cost and round(cost, 8),
        "tokens": known_sum(count for usage in usages for count in (usage.input_tokens, usage.output_tokens)),
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
    """Parse `rms_norm/3`, `rms_norm/reference` or `rms_norm/manifest`; None for anything else."""
    match = re.fullmatch(r"(.+)/(\d+|reference|manifest)", text)
    if match is None:
        return None
    name, what = match.groups()
    return name, "reference" if what == "reference" else "manifest" if what == "manifest" else int(what)


SCRIPTS = ("dom.js", "store.js", "code.js", "plots.js", "pages.js", "main.js")
"""In the order in which they need one another."""
STRICT = '"use strict";\n'


def page(title: str, form: Literal["file", "live"], data: Mapping[str, str]) -> str:
    """Return the complete page. `data` are base64 texts by the id of the element that holds each.

    Scripts make elements from the text of that data. The page's policy allows only its own script, and requests only to
    its own server (a file: none).
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    # As one program, in which nothing is a name of the page's own.
    script = "(() => {\n" + STRICT + "".join(_text(name).replace(STRICT, "") for name in SCRIPTS) + "})();\n"
    style = _text("style.css")
    environment = Environment(
        loader=PackageLoader("kernelwright.evals.inspector", "assets"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        title=title,
        form=form,
        data=data,
        script=Markup(script),
        style=Markup(style),
        policy=policy(script, style, form),
    )


def policy(script: str, style: str, form: Literal["file", "live"]) -> str:
    """Return the Content-Security-Policy: this script, this style, nothing else; no code from text."""
    parts = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "connect-src": "'self'" if form == "live" else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return files("kernelwright.evals.inspector").joinpath("assets", name).read_text(encoding="utf-8")


CHUNK = 25
"""The number of attempts that are unpacked together."""
LARGEST_BYTES = 5_000_000
LIMITS = (200_000, 60_000, 20_000, 8_000, 4_000)
"""Characters that are kept of a text; the first limit is taken that makes the file small enough."""
TEXTS = ("source", "reply", "reasoning")
SHORTEST_SHARED = 60
"""The least number of characters of a text that is shared under a name."""


def export(folder: Path, out: Path) -> int:
    """Write the run or score in `folder` to `out`, as a picture where that ends in `.svg`, else as a page; the bytes.

    Raises `RunLogError` or `OSError`.
    """
    with log_of(folder) as log:
        model = RunModel(log)
        data = (picture(log.header, model.views) if out.suffix == ".svg" else exported(model)).encode()
    out.write_bytes(data)
    return len(data)


def exported(model: RunModel) -> str:
    """Return the file's text. Where it would become too large, long texts are cut, and say so."""
    details = {
        (name, attempt.number): model.detail(name, attempt.number)
        for name, view in model.views.items()
        for attempt in view.attempts
    }
    for limit in LIMITS:
        text = page(f"kernelwright: {model.log.header.run_id}", "file", _packed(model, details, limit))
        if len(text) <= LARGEST_BYTES:
            break
    return text


def _packed(model: RunModel, details: dict[tuple[str, int], Data], limit: int) -> dict[str, str]:
    index = model.index()
    texts = _Texts(details, limit)
    chunks: dict[str, Data] = {}
    for problem in index["problems"]:
        for summary in problem["attempts"]:
            number = summary["n"]
            summary["chunk"] = name = f"chunk-{index['problems'].index(problem)}-{(number - 1) // CHUNK}"
            own = chunks.setdefault(name, {"attempts": {}, "texts": {}})
            own["attempts"][f"{problem['name']}/{number}"] = texts.detail(problem["name"], number, own["texts"])
    references = {name: problem.source for name, problem in model.problems.items()}
    data = {"index": index, "shared": {"texts": texts.shared, "references": references}} | chunks
    return {name: _pack(value) for name, value in data.items()}


def _pack(value: Any) -> str:
    # Level 8 takes half the time of the best, for a few per cent more bytes. No date: equal runs give equal files.
    data = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), compresslevel=8, mtime=0)
    return base64.b64encode(data).decode()


class _Texts:
    """Texts stored once: each is a list of pieces, and a piece that is stored under a name is [name].

    A reply quotes its candidate's source, and a prompt its parent's; sections are the same in many prompts.
    """

    def __init__(self, details: dict[tuple[str, int], Data], limit: int) -> None:
        self._details = details
        self._limit = limit
        counts = Counter(section["text"] for detail in details.values() for section in detail["sections"])
        self.shared = {_name(text): self._cut(text) for text, count in counts.items() if count > 1}
        for number, detail in details.items():
            source = self._parent_source(number, detail)
            if source and any(source in one["text"] for one in detail["sections"] if not one["stable"]):
                self.shared[_name(source)] = self._cut(source)

    def _parent_source(self, number: tuple[str, int], detail: Data) -> str | None:
        parent = self._details.get((number[0], detail["parent"] or 0))
        return parent["source"] if parent else None

    def detail(self, problem: str, number: int, own: dict[str, str]) -> Data:
        detail = dict(self._details[problem, number])
        quoted = [detail["source"], self._parent_source((problem, number), detail)]
        known = [text for text in quoted if text and len(text) >= SHORTEST_SHARED]
        if detail["source"]:
            own.setdefault(_name(detail["source"]), self._cut(detail["source"]))
        for name in TEXTS:
            detail[name] = None if detail[name] is None else self._pieces(detail[name], known, own)
        detail["sections"] = [one | {"text": self._pieces(one["text"], known, own)} for one in detail["sections"]]
        for name in ("log", "reason"):
            detail[name] = None if detail[name] is None else self._cut(detail[name])
        return detail

    def _pieces(self, text: str, known: list[str], own: dict[str, str]) -> list[Any]:
        if _name(text) in self.shared or _name(text) in own:
            return [[_name(text)]]
        for quoted in known:
            before, found, after = text.partition(quoted)
            if found and (_name(quoted) in self.shared or _name(quoted) in own):
                return [self._cut(before), [_name(quoted)], self._cut(after)]
        return [self._cut(text)]

    def _cut(self, text: str) -> str:
        if len(text) <= self._limit:
            return text
        return (
            f"{text[: self._limit]}\n[... {len(text) - self._limit} more characters are in the run, not in this file]"
        )


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
