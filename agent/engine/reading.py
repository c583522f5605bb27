"""From logged replies to the events of what they hold: a search writes them, and its replay makes them again."""

import re

from kernelwright.agent.log.events import AskedAgain, CandidateExtracted, NoCandidate, Noted
from kernelwright.agent.log.findings import FoundCandidate
from kernelwright.agent.log.records import Attempt, Reply
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import View
from kernelwright.agent.replies import Extraction, NotExtracted, extract
from kernelwright.agent.replies.normalising import normal_digest
from kernelwright.agent.steering.advice import notes_in
from kernelwright.agent.steering.tuning import knobs_of, with_setting
from kernelwright.prompts import Prompt
from kernelwright.sandbox.verdict.verdicts import Candidate

CUT_OFF = "length"
"""The finish reason of a reply that ran into its length limit."""
_OPENING = re.compile(r"\A\s*```\w*[ \t]*\n")
_STARTS_OVER = re.compile(r"^```python\b[^`]*?^(?:import|from) ", re.MULTILINE | re.DOTALL)


def read(reply: Reply, second: Reply | None = None) -> Extraction | NotExtracted:
    """What a reply offers; with the second half of one that was cut off, or the shorter one given instead."""
    if second is None:
        return extract(reply.text, reasoning=reply.reasoning, truncated=reply.finish_reason == CUT_OFF)
    cut = second.finish_reason == CUT_OFF
    joined = reply.text + _OPENING.sub("", second.text)
    texts = [second.text, joined] if _STARTS_OVER.search(second.text) else [joined, second.text]
    first, other = (extract(text, truncated=cut) for text in texts)
    return other if isinstance(first, NotExtracted) and isinstance(other, Extraction) else first


def replies_of(attempt: Attempt, log: RunLog) -> tuple[Reply, Reply | None]:
    """The reply to an attempt, and the second half of one that was cut off."""
    assert attempt.reply_digest is not None
    again = attempt.follow_up.reply_digest if attempt.follow_up else None
    return log.reply(attempt.reply_digest), log.reply(again) if again else None


def is_cut_short(reply: Reply) -> bool:
    """Whether the reply ended at its length limit before its candidate was whole."""
    return reply.finish_reason == CUT_OFF and isinstance(read(reply), NotExtracted)


def asked_again(problem: str, attempt: Attempt, longer: Prompt) -> AskedAgain:
    """The event of asking to go on with the reply that `longer` shows."""
    digest = attempt.request(longer.text).digest
    return AskedAgain(problem=problem, attempt=attempt.number, prompt_digest=longer.digest, request_digest=digest)


def noted(problem: str, attempt: Attempt, log: RunLog) -> Noted:
    """The event of reading a reply of words."""
    notes = notes_in(replies_of(attempt, log)[0].text)
    return Noted(problem=problem, attempt=attempt.number, notes=notes)


def extracted(attempt: Attempt, view: View, log: RunLog) -> tuple[CandidateExtracted | NoCandidate, list[str]]:
    """The event of finding the attempt's candidate, in its replies or by other constants in its parent's; and texts."""
    if attempt.ask.role == "tune":
        parent = view.attempt(attempt.ask.parent or 0).candidate
        assert parent is not None, "only candidates are tuned"
        source = with_setting(log.text(parent.digest), attempt.ask.directive)
        how = f"attempt {attempt.ask.parent} with {attempt.ask.directive}"
        candidate = found_candidate(Extraction(source=source, language=parent.language, how=how))
    else:
        found = read(*replies_of(attempt, log))
        if isinstance(found, NotExtracted):
            return NoCandidate(problem=view.problem, attempt=attempt.number, why=found), []
        source, candidate = found.source, found_candidate(found)
    return CandidateExtracted(problem=view.problem, attempt=attempt.number, candidate=candidate), [source]


def found_candidate(found: Extraction) -> FoundCandidate:
    """The record of a source."""
    return FoundCandidate(
        digest=Candidate(source=found.source, language=found.language).digest,
        language=found.language,
        how=found.how,
        warnings=found.warnings,
        normal=normal_digest(found.source),
        knobs=knobs_of(found.source),
    )
