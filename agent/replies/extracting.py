"""The candidate's source out of a model's reply, or why there is none.

The last block that parses and defines the entry class wins: after the reasoning first, then inside it. A reply that was
cut off gives no draft in place of the answer that it did not reach. One case cannot be told: where the provider says
that the reply was cut off, and all that it holds is prose around complete blocks, the last of them may be a draft; it
is taken, with a warning.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernelwright.agent.replies.blocks import (
    PROGRAM_LANGUAGES,
    RAW_START,
    Block,
    Program,
    marked_blocks,
    raw_blocks,
    read_alone,
    read_block,
)
from kernelwright.agent.replies.modules import LONGEST_SOURCE, Broken, Module, Parser, breaks_off, leaves_string_open
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.authenticity.languages import language_of
from kernelwright.sandbox.verdict.verdicts import Language

LONGEST_REPLY = 1_000_000
"""Characters that are read, counted from the end: far above any honest reply, and a hostile one costs seconds."""
MOST_TAGS = 64
"""Closing tags that are looked at, counted from the end of the reply."""
LOOK_BACK = 20_000
"""Characters before a closing tag in which its opening one is looked for."""
_WORDS = "(?:think|thinking|thought|thoughts|reasoning|seed:think)"
_CLOSING = re.compile(rf"</{_WORDS}>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>", re.IGNORECASE)
_OPENING = re.compile(rf"^[ \t]*(?:<{_WORDS}>|\[THINK\]|◁think▷|<\|START_THINKING\|>)", re.IGNORECASE | re.MULTILINE)
_CHANNEL = re.compile(
    r"(?:<\|start\|>\w*)?<\|channel\|>[ \t]*(\w+)[^<\n]*(?:<\|constrain\|>[^<\n]*)?<\|message\|>", re.IGNORECASE
)
_PLAIN_CHANNELS = re.compile(r"\A\s*analysis(?=[A-Z \n])([\s\S]*?)assistantfinal")
"""What is left of channels where a server drops the special tokens but not the words between them."""
_CONTROL = re.compile(
    r"<\|(?:start|end|message|channel|return|call|constrain|im_start|im_end|im_sep|eot_id|eom_id|endoftext|end_of_text"
    r"|begin_of_text|assistant|user|system)\|>|<\uff5c[^\uff5c\n]{1,40}\uff5c>|<(?:start|end)_of_turn>|(?:</s>|<eos>)\s*\Z"
)
_QUOTED = re.compile(r"^(?: {0,3}> ?)++", re.MULTILINE)
_QUOTED_RUN = re.compile(r"(?:^ {0,3}>[^\n]*\n?)++", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Zone:
    name: Literal["answer", "thought", "reasoning"]
    """`thought` is reasoning inside the reply itself, `reasoning` what came in a field of its own."""
    text: str
    unfinished: bool = False
    """Whether it is a thought that opens and never closes."""


def normalised(text: str) -> str:
    """The text with `\\n` as its only newline, without byte order marks, control tokens and quotation marks of a block.

    Channels of the harmony format become think tags.
    """
    text = text[-LONGEST_REPLY:].replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")
    text = _PLAIN_CHANNELS.sub(r"<think>\n\1\n</think>\n", text)
    text = _CHANNEL.sub(lambda match: "\n</think>\n" if match[1].lower() == "final" else "\n<think>\n", text)
    text = _CONTROL.sub("\n", text)
    text = re.sub(rf"(?<=```)[ \t]*(?=</?{_WORDS}>)", "\n", text, flags=re.IGNORECASE)
    text = re.sub(rf"(</?{_WORDS}>)[ \t]*(?=```)", r"\1\n", text, flags=re.IGNORECASE)
    return _QUOTED_RUN.sub(_unquoted, text)


def _unquoted(run: re.Match[str]) -> str:
    """A quoted block without its marks, if it holds a fence or is the whole text; else as it stands."""
    text = run.group()
    if len(text) == len(run.string) or re.search(r"^ {0,3}>[> \t]*(?:```|~~~)", text, re.MULTILINE):
        return _QUOTED.sub("", text)
    return text


def _reply_zones(text: str, parser: Parser) -> list[Zone]:
    blocks = marked_blocks(text, parser) if _CLOSING.search(text) or _OPENING.search(text) else []
    boundary = _last_closing(text, blocks, parser)
    start = 0 if boundary is None else boundary.end()
    before = Zone("thought", text[: boundary.start()] if boundary else "")
    tags = itertools.islice(_OPENING.finditer(text, start), MOST_TAGS)
    opening = next((tag for tag in tags if not ((fence := _around(tag, blocks)) and fence.closed)), None)
    if opening is None:
        return [Zone("answer", text[start:]), before]
    unfinished = Zone("thought", text[opening.end() :], unfinished=True)
    return [Zone("answer", text[start : opening.start()]), unfinished, before]


def _last_closing(text: str, blocks: Sequence[Block], parser: Parser) -> re.Match[str] | None:
    """The last closing tag that ends a thought, not one that prose or code only mentions."""
    tags = list(_CLOSING.finditer(text))[-MOST_TAGS:]
    for tag in reversed(tags):
        fence = _around(tag, blocks)
        if not _is_quoted(tag) and (fence is None or _breaks_out(tag, fence, parser)):
            return tag
    return None


def _around(tag: re.Match[str], blocks: Sequence[Block]) -> Block | None:
    return next((block for block in blocks if block.start <= tag.start() < block.end), None)


def _is_quoted(tag: re.Match[str]) -> bool:
    before, after = tag.string[tag.start() - 1 : tag.start()], tag.string[tag.end() : tag.end() + 1]
    return before == after and before in ("`", '"', "'")


def _breaks_out(tag: re.Match[str], fence: Block, parser: Parser) -> bool:
    """Whether a tag inside a block ends a thought all the same, which shows that a closing fence is missing before it.

    It stands on a line of its own, nothing in the block opens it, and the block is unclosed or no program.
    """
    before = tag.string[max(fence.start, tag.start() - LOOK_BACK) : tag.start()]
    alone = not before.rpartition("\n")[2].strip() and tag.string[tag.end() : tag.end() + 1] in ("", "\n")
    return alone and _OPENING.search(before) is None and not (fence.closed and parser.is_whole(fence.text))


MOST_BLOCKS = 64
"""Blocks that name the entry class and are read, counted from the zone's end."""
_C_LANGUAGES = frozenset({"cuda", "cu", "cpp", "c++", "cc", "c"})
_CODE_LINE = re.compile(r"(?:^|\\n|\")(?:import |from \S+ import |class |def |@)", re.MULTILINE)
"""A line of Python, also one in a JSON string."""


class ZoneReader:
    """Reads one zone. What did not parse is kept in `failures`, the last block first."""

    def __init__(self, zone: Zone, entry: str, parser: Parser) -> None:
        self.zone = zone
        self.entry = entry
        self.parser = parser
        self.failures: list[tuple[Block, Broken]] = []

    @cached_property
    def blocks(self) -> list[Block]:
        return marked_blocks(self.zone.text, self.parser)

    @cached_property
    def named(self) -> list[int]:
        return [index for index, block in enumerate(self.blocks) if self.entry in block.text]

    @cached_property
    def found(self) -> Program | None:
        """The last block that parses, defines the entry and imports torch; else the last that only lacks torch."""
        without_torch: Program | None = None
        for index in reversed(self.named[-MOST_BLOCKS:]):
            reading = self._accepted(self.blocks[index], read_block(self.blocks, index, self.entry, self.parser))
            if reading is not None and imports_torch(reading):
                return reading
            without_torch = without_torch or reading
        return without_torch or self._found_raw()

    def _found_raw(self) -> Program | None:
        if self.entry not in self.zone.text:
            return None
        for block in raw_blocks(self.zone.text, self.entry, self.blocks, self.parser):
            if (reading := self._accepted(block, read_alone(block, self.parser))) is not None:
                return reading
        return None

    def _accepted(self, block: Block, outcome: Program | Broken) -> Program | None:
        if isinstance(outcome, Program):
            return outcome if outcome.module.defines(self.entry) else None
        if block.may_be_program and (block.language not in _C_LANGUAGES or _CODE_LINE.search(block.text)):
            self.failures.append((block, outcome))
        return None

    def cut_off(self, truncated: bool) -> str | None:
        """How one sees that the final answer was not brought to its end; None where it was.

        `truncated`: the provider says that it stopped the reply in this zone.
        """
        return self._cut_by_provider() if truncated else self._cut_by_shape()

    def _cut_by_provider(self) -> str | None:
        found, tail = self.found, self._tail()
        if self.zone.name != "answer":
            return "The reply was cut off before an answer followed the reasoning."
        tail = next((block for block in self.blocks if not block.closed and leaves_string_open(block.text)), tail)
        if tail is not None and tail.may_be_program:
            text = self.zone.text
            line = text.count("\n", len(text) - len(text.lstrip("\n")), tail.start) + 1
            return f"The reply was cut off in the {tail.origin} that begins on line {line} of the answer."
        if found is None and not any(block.closed for block, _ in self.failures):
            return f"The reply was cut off before a complete block that defines {self.entry}."
        if found is not None and not found.closed:
            return f"The reply was cut off in the {found.block.origin}, of which nothing shows the end."
        if found is not None and not imports_torch(found):
            return "The reply was cut off, and its last complete block, which does not import torch, is but a part."
        return None

    def _cut_by_shape(self) -> str | None:
        if self.zone.name != "answer" and not self.zone.unfinished:
            return None
        tail = self._tail()
        if tail is None and self.found is None:
            tail = next((block for block, _ in self.failures if not block.closed), None)
        if tail is None or not tail.may_be_program:
            return None
        if self.entry not in tail.text and _CODE_LINE.search(tail.text) is None:
            return None
        error = self.parser.read(tail.text)
        if not isinstance(error, Broken) or not isinstance(read_alone(tail, self.parser), Broken):
            return None
        if not breaks_off(tail.text, error):
            return None
        return f"The last {tail.origin} breaks off in the middle (line {error.line}, {error.text!r})."

    def _tail(self) -> Block | None:
        return self.blocks[-1] if self.blocks and not self.blocks[-1].closed else None


def imports_torch(reading: Program) -> bool:
    """Whether the module can stand by itself as far as its imports show."""
    return "torch" in reading.module.imports


Kind = Literal["syntax_error", "no_entry_point", "no_code", "refusal"]
MOST_DIAGNOSED = 8
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
    if not zones:
        return "no_code", "The reply is empty."
    what = f"There is no code in the reply, which has {len(text)} characters and"
    if zones[0].zone.name != "answer":
        what = "The reply ends with its reasoning, and there is no code in it: it"
    return "no_code", f"{what} begins {_quoted(text)}."


def _syntax_error(zone: ZoneReader, entry: str) -> str:
    block, error = zone.failures[0]
    where = f", {error.text!r}" if error.text else ""
    return (
        f"The last {block.origin} that names {entry} has a syntax error on line {error.line}{where}: {error.message}."
    )


def _other_code(zone: ZoneReader, entry: str) -> Iterator[str]:
    """What code the zone holds in place of the entry class, the most telling first."""
    programs = [block for block in zone.blocks if block.may_be_program][-MOST_DIAGNOSED:]
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


def _quoted(text: str) -> str:
    line = text[:80].partition("\n")[0].strip()
    return repr(line.encode("utf-8", "backslashreplace").decode())


class Extraction(Record):
    source: str
    how: str
    """Where it stood and which of how many it was, for a person to read."""
    language: Language
    warnings: tuple[str, ...] = ()
    """What is odd about the reply or the source; none keeps it from being judged."""


class NotExtracted(Record):
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
    by_preference = [*_reply_zones(normalised(reply), parser), Zone("reasoning", normalised(reasoning))]
    zones = [ZoneReader(zone, entry, parser) for zone in by_preference if zone.text.strip()]
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
