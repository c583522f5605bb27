"""From replies to what they hold: the candidate with its identity and its constants, or why there is none. Pure."""

import re

from kernelwright.agent.log.records import Ask, FoundCandidate, Reply
from kernelwright.agent.replies import Extraction, NotExtracted, extract
from kernelwright.agent.replies.normalising import normal_digest
from kernelwright.agent.steering.tuning import knobs_of, with_setting
from kernelwright.sandbox.verdict.verdicts import Candidate, Language

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


def is_cut_short(reply: Reply) -> bool:
    """Whether the reply ended at its length limit before its candidate was whole."""
    found = read(reply)
    return reply.finish_reason == CUT_OFF and isinstance(found, NotExtracted)


def found_in(extracted: Extraction) -> FoundCandidate:
    """The record of what was extracted."""
    return found_candidate(extracted.source, extracted.language, extracted.how, extracted.warnings)


def varied(parent: FoundCandidate, source: str, ask: Ask) -> tuple[FoundCandidate, str]:
    """The candidate of a tuning attempt, and its source: its parent's with other constants."""
    changed = with_setting(source, ask.directive)
    return found_candidate(changed, parent.language, f"attempt {ask.parent} with {ask.directive}"), changed


def found_candidate(source: str, language: Language, how: str, warnings: tuple[str, ...] = ()) -> FoundCandidate:
    """The record of a source."""
    return FoundCandidate(
        digest=Candidate(source=source, language=language).digest,
        language=language,
        how=how,
        warnings=warnings,
        normal=normal_digest(source),
        knobs=knobs_of(source),
    )
