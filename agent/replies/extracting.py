"""The candidate's source out of a model's reply, or why there is none.

The last block that parses and defines the entry class wins: after the reasoning first, then inside it. A reply that was
cut off gives no draft in place of the answer that it did not reach. One case cannot be told: where the provider says
that the reply was cut off, and all that it holds is prose around complete blocks, the last of them may be a draft; it
is taken, with a warning.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from kernelwright.agent.replies.diagnosis import diagnose
from kernelwright.agent.replies.joining import Program
from kernelwright.agent.replies.modules import Parser
from kernelwright.agent.replies.selection import ZoneReader, imports_torch
from kernelwright.agent.replies.zones import read_zones
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.authenticity.languages import language_of
from kernelwright.sandbox.verdict.verdicts import Language


class Extraction(Record):
    """A source that parses and defines the entry class at its top level."""

    source: str
    how: str
    """Where it stood and which of how many it was, for a person to read."""
    language: Language
    warnings: tuple[str, ...] = ()
    """What is odd about the reply or the source; none keeps it from being judged."""


class NotExtracted(Record):
    """A reply without a candidate that could be judged."""

    kind: Literal["no_code", "truncated", "syntax_error", "no_entry_point", "refusal"]
    detail: str
    """One or two sentences for a repair prompt: the line at fault, or what was found instead."""


def extract(
    reply: str, *, reasoning: str = "", truncated: bool = False, entry: str = "ModelNew"
) -> Extraction | NotExtracted:
    """The source that `reply` offers as its final answer.

    `reasoning` is what the provider returned in a field apart; code in it counts only where the reply has none.
    `truncated` says that the provider stopped at its length limit. Takes any text, in linear time, and never raises.
    """
    parser = Parser()
    zones = [ZoneReader(zone, entry, parser) for zone in read_zones(reply, reasoning, parser)]
    if truncated and not zones:
        return NotExtracted(kind="truncated", detail="The reply was cut off before its first word.")
    for index, zone in enumerate(zones[:1] if truncated else zones):
        if (cut := zone.cut_off(truncated)) is not None:
            return NotExtracted(kind="truncated", detail=cut)
        if zone.found is not None:
            return _extracted(zones, index, zone.found, truncated)
    kind, detail = diagnose(zones, entry)
    return NotExtracted(kind=kind, detail=detail)


def _extracted(zones: Sequence[ZoneReader], index: int, found: Program, truncated: bool) -> Extraction:
    cut = ("The reply was cut off behind this block.",) if truncated else ()
    return Extraction(
        source=f"{found.module.source.strip(chr(10))}\n",
        how=f"{_which(zones[index], found)}, {_place(zones, index)}",
        language=language_of(found.module.tree),
        warnings=(*cut, *_passed_over(zones, index), *_oddities(zones[index], found)),
    )


def _which(zone: ZoneReader, found: Program) -> str:
    """`fenced block, 2 of 2 that name ModelNew`."""
    joined = f" joined from {found.parts} blocks" if found.parts > 1 else ""
    named = [zone.blocks[index] for index in zone.named]
    if found.block not in named:
        return f"{found.block.origin}{joined}"
    return f"{found.block.origin}{joined}, {named.index(found.block) + 1} of {len(named)} that name {zone.entry}"


def _place(zones: Sequence[ZoneReader], index: int) -> str:
    zone = zones[index].zone
    if zone.name == "reasoning":
        return "in the separate reasoning"
    if zone.name == "thought":
        return "in reasoning that never closes" if zone.unfinished else "in the reasoning"
    return "after the reasoning" if any(other.zone.name == "thought" for other in zones) else "in the reply"


def _passed_over(zones: Sequence[ZoneReader], index: int) -> Iterator[str]:
    if zones[index].zone.name != "answer":
        yield "The code stands in the reasoning, and no usable code follows it."
    for zone in zones[: index + 1]:
        for block, error in zone.failures[:1]:
            yield f"A {block.origin} was passed over for a syntax error on its line {error.line}: {error.message}."


def _oddities(zone: ZoneReader, found: Program) -> Iterator[str]:
    if not found.closed:
        yield f"Nothing closes the {found.block.origin}: more may have been meant to follow."
    if found.dropped.strip():
        yield f"{found.dropped.strip().count(chr(10)) + 1} lines behind the code were left out."
    if not imports_torch(found):
        yield "The source does not import torch."
    if files := _other_files(zone, found):
        yield f"The source names {', '.join(files)}, and a candidate is one file."


def _other_files(zone: ZoneReader, found: Program) -> list[str]:
    """Files that the reply gives as blocks of their own, as far as the source shows that it needs them."""
    if len(zone.blocks) < 2:
        return []
    imported = sorted(found.module.imports - {"torch", "triton", "tilelang", "helion", "cutlass", "cuda"})
    beside = [f"{name}.py" for name in imported if f"{name}.py" in zone.zone.text]
    return beside + sorted(set(re.findall(r"[\"']([\w./-]{1,80}\.(?:cu|cpp))[\"']", found.module.source)))
