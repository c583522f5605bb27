"""The `Brief` of the next step of a search, from its record: verdicts in words for a model.

Further facts of a prompt: the hardware's sheet, PyTorch's times, the roofline.
"""

import os
import platform
import re
import statistics
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright import prompts
from kernelwright.agent.log.records import Ask, Attempt, doubt_of
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View
from kernelwright.agent.replies import NotExtracted
from kernelwright.agent.steering import lessons, times_the_roofline
from kernelwright.agent.strategies import lineage
from kernelwright.problems import Problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts.brief import Baselines
from kernelwright.sandbox.machine import cpu_facts, processor_name, versions
from kernelwright.sandbox.peaks import caches_of, known_peaks_here
from kernelwright.sandbox.pool.executor import torch_version
from kernelwright.sandbox.storage import Store, work_key
from kernelwright.sandbox.verdict.report import DOUBTS, timings
from kernelwright.sandbox.verdict.roofline import Floor, NecessaryWork, floor_of
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, EAGER, Failed, Measurement, Passed

FALLBACK_GPU = "H100"  # the device of prompts for a GPU target on a machine without a known GPU


def sheet_for(target: str, name: str | None = None, ordinal: int = 0) -> prompts.DeviceSheet:
    """Make the sheet for a target (`cpp`, `cuda` and so on), of the named device or of this machine."""
    if name is not None:
        found = prompts.device_sheet(name)
        if found is None:
            raise prompts.PromptError(f"no device {name!r}; there are: {', '.join(prompts.known_devices())}")
        return found
    if TARGETS[target].device == "cpu":  # a KeyError here is a caller's bug
        cores = len(os.sched_getaffinity(0))
        caches = {f"L{level}{'d' * (kind == 'Data')}": size for level, kind, size, _ in caches_of(0)}
        return prompts.cpu_sheet(processor_name(), cores, cpu_facts().get("flags", "").split(), caches)
    import torch

    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(ordinal)
        own = (f"{facts.multi_processor_count} multiprocessors", f"device memory {facts.total_memory / 1e9:.0f} GB")
        return prompts.device_sheet(facts.name) or prompts.DeviceSheet(name=facts.name, kind="cuda", facts=own)
    fallback = prompts.device_sheet(FALLBACK_GPU)
    assert fallback is not None
    return fallback


def sheet_in(section: str, target: prompts.Target) -> prompts.DeviceSheet:
    _, _, body = section.partition("\n\n")
    name, *facts = body.splitlines()
    return prompts.DeviceSheet(
        name=name, kind=TARGETS[target].device, facts=tuple(fact.removeprefix("- ") for fact in facts if fact)
    )


def versions_here() -> prompts.TargetVersions:
    """Read the versions of this machine, under which the answers of a run are judged."""
    found = {"python": platform.python_version(), "torch": torch_version()}
    numbers = {name: re.match(r"\d+\.\d+", version) for name, version in found.items()}
    return prompts.TargetVersions(**{name: number[0] for name, number in numbers.items() if number})


def baselines_of(view: View) -> Baselines:
    """Give PyTorch's times and the roofline from before the first ask: the same in all prompts of the search.

    Without these, take them from the first verdict that passed and has a roofline.
    """
    first = view.measured.verdict if view.measured else None
    if isinstance(first, Passed):
        return times_and_roofline(first.measurement)
    passed = (one.verdict.measurement for one in view.attempts if isinstance(one.verdict, Passed))
    return next((times_and_roofline(one) for one in passed if one.floor is not None), Baselines())


def remembered(problem: Problem, sheet: prompts.DeviceSheet, threads: int, folder: Path | None = None) -> Baselines:
    """Give the stored times and roofline of earlier judgings on this machine, for prompts outside a search.

    Measures nothing. `threads` are those that a candidate on the processor is judged with.
    """
    from kernelwright.sandbox.timing.baseline_facts import BaselineTimes  # it imports torch

    place = sheet.name if sheet.kind != "cpu" else f"{sheet.name}, {threads} threads"
    store = Store(f"baselines/{problem.digest}", folder)
    times = {
        one.baseline: one.median_ms
        for one in BaselineTimes(problem, store).known()
        if one.device == place and one.versions.get("torch") == versions()["torch"]
    }
    work = None
    with suppress(ValidationError):
        work = NecessaryWork.model_validate(Store("works", folder).get(work_key(problem.digest)))
    peaks = work and known_peaks_here(sheet.kind != "cpu", threads, Store("peaks", folder))
    floor = floor_of(work, peaks, problem.precision) if work and peaks else None
    return Baselines(times=_times(times), roofline=_roofline(floor), mode=work and work.mode)


def times_and_roofline(found: Measurement) -> Baselines:
    """Give PyTorch's times and the roofline of one measurement."""
    is_shipped = found.against(AS_SHIPPED) is found.against(EAGER)
    times = _times(found.baselines_ms, is_shipped, found.less_accurate)
    empty_ms = statistics.median(found.protocol_ms) if found.timing_clock == "call" and found.protocol_ms else None
    if empty_ms is not None and empty_ms < min(found.baselines_ms.values()):
        times += (f"a call that does nothing: {empty_ms:#.3g} ms, part of all of these",)
    return Baselines(times=times, roofline=_roofline(found.floor), mode=found.floor and found.floor.work.mode)


def _times(
    baselines_ms: Mapping[str, float], is_shipped: bool = False, less_accurate: Collection[str] = ()
) -> tuple[str, ...]:
    """Write times, the fastest first. `is_shipped`: eager at its default precision is the same as eager."""
    ordered = sorted(baselines_ms.items(), key=lambda one: one[1])
    how = {
        EAGER: ", at the precision policy above" + (", which is also PyTorch as it ships here" if is_shipped else ""),
        AS_SHIPPED: ", under PyTorch's own precision switches",
    }
    how |= {name: f"{how.get(name, '')}, less accurate" for name in less_accurate}
    return tuple(f"{name}: {ms:#.3g} ms{how.get(name, '')}" for name, ms in ordered)


def _roofline(floor: Floor | None) -> tuple[str, ...]:
    if floor is None:
        return ()
    work = floor.work
    moved = f"{_amount(work.read_bytes)}B to read and {_amount(work.written_bytes)}B to write, each once"
    facts = [f"{moved}: {floor.memory_ms:#.3g} ms on this device at the very least"]
    if floor.copy_ms:
        rate = _amount(1e3 * work.bytes / floor.copy_ms)
        facts.append(f"a plain copy that moves as many bytes: {floor.copy_ms:#.3g} ms ({rate}B/s)")
    if work.flops:
        counts = " and ".join(f"{_amount(count)}FLOP in {dtype}" for dtype, count in work.flops.items())
        rate = f"{_amount(1e3 * max(work.flops.values()) / floor.direct_ms)}FLOP/s" if floor.direct_ms else "its rate"
        how = "the fastest units whose results keep the precision"
        if "float32" in work.flops:
            how += " (for float32 also tensor cores, with split operands)"
        facts.append(f"{counts} the reference's way: {floor.direct_ms:#.3g} ms at {rate}, {how}")
    return tuple(facts)


def _amount(count: float) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.3g} "


SPARED = 0.9  # a best time below this share of the roofline leaves out work: the roofline then says nothing
ALIKE, FEWEST_LINES = 0.6, 3
"""Two changes are alike if they share this part of the lines that either adds; smaller changes are not compared."""
SHOWN_BROKEN = frozenset({"syntax_error", "no_entry_point"})
"""Kinds of reply without a candidate whose text helps to mend it. A refusal or a long unfinished text does not."""


@dataclass(frozen=True)
class BriefMaker:
    """The maker of briefs: a pure function of the view and the texts that it names."""

    device: prompts.DeviceSheet
    versions: prompts.TargetVersions
    texts: RunLog  # the source of texts that the record names by digest
    history_tokens: int = 700

    def __call__(self, problem: Problem, view: View, ask: Ask) -> prompts.Brief:
        parent = None if ask.parent is None else view.attempt(ask.parent)
        rows = [self._past(view, one) for one in view.attempts if one.finished and not one.advises]
        telling = [] if parent is None else [*lineage(view, parent), *view.children(parent.number)]
        history = prompts.shortened(rows, self.history_tokens, [one.number for one in telling])
        return prompts.Brief(
            problem=problem,
            target=ask.target,
            role=ask.role,
            device=self.device,
            versions=self.versions,
            baselines=baselines_of(view),
            directive=ask.directive,
            parent=parent and self._parent(parent),
            history=history,
            left_out=len(rows) - len(history),
            lessons=lessons(view),
            room=times_the_roofline(view, SPARED),
        )

    def _parent(self, attempt: Attempt) -> prompts.Parent:
        source = self.texts.text(attempt.candidate.digest) if attempt.candidate else ""
        return prompts.Parent(**_result(attempt), source=source, evidence=self._evidence(attempt))

    def _evidence(self, attempt: Attempt) -> str:
        if isinstance(attempt.ruling, Passed):
            return timings(attempt.ruling)
        if isinstance(attempt.ruling, Failed):
            return said_once(attempt.ruling)
        why = attempt.extraction
        assert isinstance(why, NotExtracted) and attempt.reply_digest, "only a finished attempt is a parent"
        evidence = f"The reply held no candidate that can be judged. {why.detail}"
        if why.kind in SHOWN_BROKEN:
            evidence += f"\n\nThe reply was:\n\n{self.texts.reply(attempt.reply_digest).text}"
        return evidence

    def _past(self, view: View, attempt: Attempt) -> prompts.PastAttempt:
        why = DOUBTS.get(_doubt_of_gain(attempt), "")
        remarks = [*self._repeats(view, attempt), attempt.detail.partition("\n")[0], why]
        if attempt.ask.role == "tune":
            remarks.insert(0, attempt.ask.directive)
        detail = "; ".join(remark for remark in remarks if remark)
        return prompts.PastAttempt(**_result(attempt), role=attempt.ask.role, idea=attempt.ask.idea, detail=detail)

    def _repeats(self, view: View, attempt: Attempt) -> Iterator[str]:
        """Say what the attempt repeats: an earlier program, or an earlier change."""
        if attempt.same_as is not None:
            earlier = view.attempt(attempt.same_as).candidate
            same = earlier is not None and attempt.candidate is not None and earlier.digest == attempt.candidate.digest
            words = "the very source of" if same else "but for names, comments and layout the source of"
            yield f"{words} attempt {attempt.same_as}"
            return
        mine = self._added(view, attempt)
        for other in view.attempts[: attempt.number - 1] if len(mine) >= FEWEST_LINES else ():
            theirs = self._added(view, other)
            if other.number != attempt.ask.parent and len(mine & theirs) >= ALIKE * len(mine | theirs) > 0:
                yield f"brings back what attempt {other.number} changed"
                return

    def _added(self, view: View, attempt: Attempt) -> frozenset[str]:
        """Give the lines that an improvement adds to its parent; none for other attempts."""
        parent = view.attempt(attempt.ask.parent).candidate if attempt.ask.parent else None
        if attempt.candidate is None or parent is None or attempt.ask.role != "improve":
            return frozenset()
        return lines_of(self.texts.text(attempt.candidate.digest)) - lines_of(self.texts.text(parent.digest))


def _doubt_of_gain(attempt: Attempt) -> str:
    found = attempt.measurement
    return (doubt_of(found) or "") if found and found.speedup > 1 else ""


def _result(attempt: Attempt) -> dict[str, Any]:
    """Give the fields that a parent and a row of the table share; `doubt` with the interval of an uncertain gain."""
    return {
        "number": attempt.number,
        "outcome": attempt.outcome,
        "candidate_ms": attempt.candidate_ms,
        "speedup": attempt.speedup,
        "doubt": attempt.marks if _doubt_of_gain(attempt) else "",
    }


@lru_cache(maxsize=256)
def lines_of(source: str) -> frozenset[str]:
    lines = (" ".join(line.split()) for line in source.splitlines())
    return frozenset(line for line in lines if any(character.isalnum() for character in line))


def said_once(verdict: Failed) -> str:
    """Join reason and log of a failure; lines in both are kept once, in the log."""
    logged = verdict.log.splitlines()
    if logged and logged[0].strip() == verdict.reason.strip():
        return verdict.log
    reason = {line.strip() for line in verdict.reason.splitlines()}
    log = "\n".join(line for line in logged if line.strip() not in reason)
    return "\n\n".join(part for part in (verdict.reason, log) if part.strip())
