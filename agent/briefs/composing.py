"""From the record of a search to the `Brief` of its next step: verdicts put into words for a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from kernelwright.agent.briefs.needs import yardstick_of
from kernelwright.agent.log.ranking import doubt_of
from kernelwright.agent.log.records import Ask, Attempt, Reply
from kernelwright.agent.log.view import View
from kernelwright.agent.replies import NotExtracted
from kernelwright.agent.steering.advice import lessons
from kernelwright.agent.strategies.moves import lineage
from kernelwright.problems import Problem
from kernelwright.prompts import Brief, DeviceSheet, Parent, PastAttempt, TargetVersions, shortened
from kernelwright.sandbox.verdict.in_words import DOUBTS, timings
from kernelwright.sandbox.verdict.verdicts import Failed, Passed

ALIKE, FEWEST_LINES = 0.6, 3
"""Two changes are alike if they share this part of the lines that either adds; smaller changes are not compared."""
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
    history_tokens: int = 2000
    """See `SearchConfig.history_tokens`."""

    def __call__(self, problem: Problem, view: View, ask: Ask) -> Brief:
        """All that the prompt for `ask` is made from: the attempts that `view` knows the end of, and the parent."""
        parent = None if ask.parent is None else view.attempt(ask.parent)
        finished = [attempt for attempt in view.attempts if attempt.finished and not attempt.advises]
        rows = [self._past(view, attempt) for attempt in finished]
        telling = [] if parent is None else [*lineage(view, parent), *view.children(parent.number)]
        history = shortened(rows, self.history_tokens, [one.number for one in telling])
        return Brief(
            problem=problem,
            target=ask.target,
            role=ask.role,
            device=self.device,
            versions=self.versions,
            yardstick=yardstick_of(view),
            directive=ask.directive,
            parent=None if parent is None else self._parent(parent),
            history=history,
            left_out=len(rows) - len(history),
            lessons=lessons(view),
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
        if isinstance(attempt.ruling, Passed):
            return timings(attempt.ruling)
        if isinstance(attempt.ruling, Failed):
            return said_once(attempt.ruling)
        if isinstance(attempt.extraction, NotExtracted) and attempt.reply_digest:
            return self._refused(attempt.extraction, attempt.reply_digest)
        raise AssertionError(f"attempt {attempt.number} is not finished, so it can be no parent")

    def _refused(self, why: NotExtracted, reply_digest: str) -> str:
        said = f"The reply held no candidate that can be judged. {why.detail}"
        if why.kind not in SHOWN_BROKEN:
            return said
        return f"{said}\n\nThe reply was:\n\n{self.texts.reply(reply_digest).text}"

    def _past(self, view: View, attempt: Attempt) -> PastAttempt:
        found = attempt.ruling.measurement if isinstance(attempt.ruling, Passed) else None
        doubt = doubt_of(found) if found and found.speedup > 1 else None
        remarks = [*self._repeats(view, attempt), attempt.detail.partition("\n")[0], DOUBTS.get(doubt or "", "")]
        if attempt.ask.role == "tune":
            remarks.insert(0, attempt.ask.directive)
        return PastAttempt(
            number=attempt.number,
            role=attempt.ask.role,
            idea=attempt.ask.idea,
            outcome=attempt.outcome,
            detail="; ".join(remark for remark in remarks if remark),
            candidate_ms=attempt.candidate_ms,
            speedup=attempt.speedup,
        )

    def _repeats(self, view: View, attempt: Attempt) -> Iterator[str]:
        """What the attempt does that was done before: the same program, or the same change."""
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
        """The lines that the attempt has and its parent has not; none for what does not start from a source."""
        parent = view.attempt(attempt.ask.parent).candidate if attempt.ask.parent else None
        if attempt.candidate is None or parent is None or attempt.ask.role != "improve":
            return frozenset()
        return self._lines(attempt.candidate.digest) - self._lines(parent.digest)

    def _lines(self, digest: str) -> frozenset[str]:
        return lines_of(self.texts.text(digest))


@lru_cache(maxsize=256)
def lines_of(source: str) -> frozenset[str]:
    """The lines of a source that say something, without layout."""
    lines = (" ".join(line.split()) for line in source.splitlines())
    return frozenset(line for line in lines if any(character.isalnum() for character in line))


def said_once(verdict: Failed) -> str:
    """Reason and log of a failure; lines of the reason that the log repeats stand once, where their context is."""
    logged = verdict.log.splitlines()
    if logged and logged[0].strip() == verdict.reason.strip():
        return verdict.log
    reason = {line.strip() for line in verdict.reason.splitlines()}
    log = "\n".join(line for line in logged if line.strip() not in reason)
    return "\n\n".join(part for part in (verdict.reason, log) if part.strip())
