"""From the record of a search to the `Brief` of its next step: verdicts put into words for a model."""

from dataclasses import dataclass
from typing import Protocol

from agent.extraction import NotExtracted
from agent.records import Ask, Attempt, Reply
from agent.view import View
from problems import Problem
from prompts import Brief, DeviceSheet, Parent, PastAttempt, TargetVersions
from sandbox.verdict import Failed, Passed

SHOWN_BROKEN = frozenset({"syntax_error", "no_entry_point"})
"""Kinds of reply without a candidate whose text helps to mend it. A refusal or a long unfinished text does not."""


class Texts(Protocol):
    """Where the texts stand that the record names by digest; a `RunLog` is one."""

    def text(self, digest: str) -> str:
        """The source of a candidate."""
        ...

    def reply(self, digest: str) -> Reply:
        """The reply of an attempt."""
        ...


@dataclass(frozen=True)
class BriefMaker:
    """Makes the brief of each ask; a pure function of the view and the texts it names."""

    device: DeviceSheet
    versions: TargetVersions
    texts: Texts

    def __call__(self, problem: Problem, view: View, ask: Ask) -> Brief:
        """All that the prompt for `ask` is made from: the attempts that `view` knows the end of, and the parent."""
        parent = None if ask.parent is None else view.attempt(ask.parent)
        return Brief(
            problem=problem,
            target=ask.target,
            role=ask.role,
            device=self.device,
            versions=self.versions,
            directive=ask.directive,
            parent=None if parent is None else self._parent(parent),
            history=tuple(_past(attempt) for attempt in view.attempts if attempt.finished),
        )

    def _parent(self, attempt: Attempt) -> Parent:
        return Parent(
            number=attempt.number,
            source=self.texts.text(attempt.candidate.digest) if attempt.candidate else "",
            outcome=attempt.outcome,
            evidence=self._evidence(attempt),
            candidate_ms=attempt.candidate_ms,
            speedup=attempt.speedup,
        )

    def _evidence(self, attempt: Attempt) -> str:
        if isinstance(attempt.verdict, Passed):
            return timings(attempt.verdict)
        if isinstance(attempt.verdict, Failed):
            return "\n\n".join(part for part in (attempt.verdict.reason, attempt.verdict.log) if part)
        if isinstance(attempt.extraction, NotExtracted) and attempt.reply_digest:
            return self._refused(attempt.extraction, attempt.reply_digest)
        raise AssertionError(f"attempt {attempt.number} is not finished, so it can be no parent")

    def _refused(self, why: NotExtracted, reply_digest: str) -> str:
        said = f"The reply held no candidate that can be judged. {why.detail}"
        if why.kind not in SHOWN_BROKEN:
            return said
        return f"{said}\n\nThe reply was:\n\n{self.texts.reply(reply_digest).text}"


def timings(verdict: Passed) -> str:
    """The judge's measurement in a few lines: medians in ms, and the speedup with its interval."""
    measured = verdict.measurement
    times = {"candidate": measured.candidate_ms} | measured.baselines_ms
    lines = [f"{name}: {ms:#.3g} ms" for name, ms in times.items()]
    low, high = measured.interval
    lines.append(
        f"speedup against {measured.closest.baseline}: {measured.speedup:.2f} "
        f"(95 % interval {low:.2f} to {high:.2f}, {measured.comparison.replace('_', ' ')})"
    )
    return "\n".join([*lines, f"threads: {measured.threads}"])


def _past(attempt: Attempt) -> PastAttempt:
    same = f"the very source of attempt {attempt.same_as}; " if attempt.same_as else ""
    return PastAttempt(
        number=attempt.number,
        role=attempt.ask.role,
        idea=attempt.ask.idea,
        outcome=attempt.outcome,
        detail=(same + attempt.detail.partition("\n")[0]).removesuffix("; "),
        candidate_ms=attempt.candidate_ms,
        speedup=attempt.speedup,
    )
