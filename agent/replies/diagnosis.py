"""Why a reply gave no candidate: the most advanced of its failures, in words that help to repair it."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from kernelwright.agent.replies.blocks import RAW_START
from kernelwright.agent.replies.fences import PROGRAM_LANGUAGES
from kernelwright.agent.replies.modules import Module, Parser
from kernelwright.agent.replies.selection import ZoneReader
from kernelwright.agent.replies.strings import LONGEST_SOURCE

Kind = Literal["syntax_error", "no_entry_point", "no_code", "refusal"]
MOST_BLOCKS = 8
"""Blocks without the entry class whose definitions are looked at, counted from the end of a zone."""
MOST_NAMES = 8
_REFUSAL = re.compile(
    r"\bI(?:'m|\u2019m| am) (?:very |really |so )?(?:sorry|unable|not able|not comfortable)\b"
    r"|\bI (?:cannot|can't|can\u2019t|won't|won\u2019t|will not|must decline|have to decline|am not able to)\b"
    r"|\bI (?:do not|don't|don\u2019t) feel comfortable\b|\bas an AI\b|\bunable to (?:help|assist|comply|fulfil)"
    r"|\bagainst (?:my|our) (?:guidelines|policy|policies)\b",
    re.IGNORECASE,
)
_C_TEXT = re.compile(r"__global__|^[ \t]*#include\b|\bPYBIND11_MODULE\b|\btorch::Tensor\b", re.MULTILINE)
_PYTHON_LINE = re.compile(r"^[ \t]*(?:import |from \S+ import |class \w|def \w)", re.MULTILINE)


def diagnose(zones: Sequence[ZoneReader], entry: str) -> tuple[Kind, str]:
    """The kind of failure and a detail of one or two sentences; the zones come in the order of preference."""
    syntax = next((_syntax_error(zone, entry) for zone in zones if zone.failures), None)
    if syntax is not None:
        return "syntax_error", syntax
    other = next((text for zone in zones for text in _other_code(zone, entry)), None)
    if other is not None:
        return "no_entry_point", f"{other}; need class {entry} at the top level."
    text = zones[0].zone.text.strip() if zones else ""
    if zones and zones[0].zone.name == "answer" and (refusal := _REFUSAL.search(text[:20_000])):
        return "refusal", f"The reply declines to answer: {_quoted(text[refusal.start() :])}."
    return "no_code", _no_code(zones, text)


def _syntax_error(zone: ZoneReader, entry: str) -> str:
    block, error = zone.failures[0]
    where = f", {error.text!r}" if error.text else ""
    return (
        f"The last {block.origin} that names {entry} has a syntax error on line {error.line}{where}: {error.message}."
    )


def _other_code(zone: ZoneReader, entry: str) -> Iterator[str]:
    """What code the zone holds in place of the entry class, the most telling first."""
    programs = [block for block in zone.blocks if block.may_be_program][-MOST_BLOCKS:]
    modules = [read for block in programs if isinstance(read := zone.parser.read(block.text), Module)]
    if not programs and (raw := _raw_module(zone.zone.text, zone.parser)) is not None:
        modules = [raw]
    names = [name for module in modules for name in module.definitions]
    if entry in names:
        yield f"Found {entry} as a function"
    elif names:
        unique = list(dict.fromkeys(names))
        more = f" and {len(unique) - MOST_NAMES} more" if len(unique) > MOST_NAMES else ""
        yield f"Found {', '.join(name[:60] for name in unique[:MOST_NAMES])}{more}"
    if any(module.imports or module.binds for module in modules):
        yield "Found Python statements but no class"
    for block in reversed(programs):
        if _PYTHON_LINE.search(block.text):
            yield f"Found a {block.origin} of Python that does not parse"
        elif _C_TEXT.search(block.text):
            yield f"Found a {block.origin} of C++ or CUDA text and no Python"
        elif block.language in PROGRAM_LANGUAGES and block.text.strip():
            yield f"Found a {block.origin} marked {block.language} that is no Python program"


def _raw_module(text: str, parser: Parser) -> Module | None:
    start = RAW_START.search(text)
    if start is None:
        return None
    trimmed = parser.trimmed(text[start.start() : start.start() + LONGEST_SOURCE])
    return trimmed[0] if isinstance(trimmed, tuple) else None


def _no_code(zones: Sequence[ZoneReader], text: str) -> str:
    if not zones:
        return "The reply is empty."
    if zones[0].zone.name != "answer":
        return f"The reply ends with its reasoning, and there is no code in it: it begins {_quoted(text)}."
    return f"There is no code in the reply, which has {len(text)} characters and begins {_quoted(text)}."


def _quoted(text: str) -> str:
    line = text[:80].partition("\n")[0].strip()
    return repr(line.encode("utf-8", "backslashreplace").decode())
