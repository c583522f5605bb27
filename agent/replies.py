"""Extraction of the candidate's source from a model's reply, or the reason why there is none. It runs nothing.

The last block that parses and defines the entry class wins: after the reasoning first, then inside it. A reply that was
cut off yields no draft in place of its missing answer. But where it holds only prose around complete blocks, the last
of them, which may be a draft, is taken with a warning.
"""

import ast
import keyword
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Literal, NamedTuple

from kernelwright.problems.languages import LanguageName
from kernelwright.problems.languages.detect import language_of
from kernelwright.problems.problem import Record
from kernelwright.problems.source import Binding, bindings, parse_module, top_level


class Extraction(Record):
    """The candidate that a reply offers."""

    source: str
    how: str  # its place and its number among others, for a person to read
    language: LanguageName
    warnings: tuple[str, ...] = ()  # oddities of the reply or the source; none keeps it from being judged


class NotExtracted(Record):
    """The reason why a reply offers no candidate."""

    kind: Literal["no_code", "truncated", "syntax_error", "no_entry_point", "refusal"]
    detail: str  # one or two sentences for a repair prompt: the line at fault, or what else was found


def extract(
    reply: str, *, reasoning: str = "", truncated: bool = False, entry: str = "ModelNew"
) -> Extraction | NotExtracted:
    """Find the source that `reply` offers as its final answer.

    `reasoning` is from a field of its own; code in it counts only where the reply has none. `truncated` says that the
    provider stopped at its length limit. Takes any text, in linear time, and never raises.
    """
    parser = Parser()
    parts = [*_split(_normalised(reply), parser), ("in the separate reasoning", _normalised(reasoning))]
    zones = [Zone(place, text, entry, parser) for place, text in parts if text.strip()]
    zones = zones or [Zone(IN_REPLY, "", entry, parser)]
    for index, zone in enumerate(zones[:1] if truncated else zones):
        cut = zone.cut_by_provider() if truncated else zone.cut_by_shape()
        if cut is not None:
            return NotExtracted(kind="truncated", detail=cut)
        if zone.found is not None:
            return _extracted(zones[: index + 1], zone.found, truncated)
    return _diagnosed(zones, entry)


LONGEST_SOURCE = 300_000  # characters: parsing a longer one would cost seconds and hundreds of megabytes
PARSE_ALLOWANCE = 2_000_000  # characters that one extraction parses in all: some four seconds at worst
MOST_CUTS = 8  # cuts of a text at its first error in search of a prefix that parses
FILENAME = "<kernelwright reply>"  # the name of a reply where Python names the file that it parses
_FILTERING = threading.Lock()


class Module:
    """A text that parses, with its syntax tree."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of its top level."""
        return tuple(bindings(top_level(self.tree)))

    @property
    def imports_torch(self) -> bool:
        """Tell whether it is complete as far as its imports show."""
        return bool(re.search(r"^[ \t]*(?:import|from)[ \t][^#\n]*\btorch\b", self.source, re.MULTILINE))

    def defines(self, entry: str) -> bool:
        """Tell whether the top level has a class of that name, or assigns something to it.

        The scan takes an import and a function too. In a reply an import only uses a definition from elsewhere.
        """
        return any(binding.name == entry and binding.kind in ("class", "value") for binding in self.bindings)


class Broken(NamedTuple):
    """The first syntax error of a text, with its line, counted from 1."""

    line: int
    text: str
    message: str


class Parser:
    """Reader of texts within one allowance of characters, each text once; it never raises."""

    def __init__(self) -> None:
        self._allowance = PARSE_ALLOWANCE
        self._read: dict[str, Module | Broken] = {}

    def read(self, source: str) -> Module | Broken:
        if source not in self._read:
            if len(source) > min(self._allowance, LONGEST_SOURCE):
                self._read[source] = Broken(1, "", f"{len(source)} characters of code are too long to be read")
            else:
                self._allowance -= len(source)
                self._read[source] = _parse(source)
        return self._read[source]

    def is_whole(self, source: str) -> bool:
        return isinstance(self.read(source), Module)

    def trimmed(self, text: str) -> Module | Broken:
        """Parse a text, or else what is before its first error, where that has statements and the rest is prose."""
        kept, outcome = text, self.read(text)
        for _ in range(MOST_CUTS):
            if isinstance(outcome, Module):
                break
            error, kept = outcome, _before_line(kept, outcome.line)
            outcome = self.read(kept)
        if kept == text or isinstance(outcome, Broken):
            return outcome
        return error if not kept.strip() or _STATEMENT.match(text[len(kept) :].lstrip("\n")) else outcome


def _parse(source: str) -> Module | Broken:
    ours = ("ignore", None, Warning, re.compile(re.escape(FILENAME)), 0)
    # The filter stays: two threads with `catch_warnings` can restore each other's. It goes out before it comes first.
    with _FILTERING:
        if not warnings.filters or warnings.filters[0] != ours:
            warnings.filterwarnings("ignore", module=re.escape(FILENAME))
    line = 1
    try:
        return Module(source, parse_module(source, filename=FILENAME))
    except SyntaxError as error:
        line, message = error.lineno or 1, error.msg
    except (RecursionError, MemoryError):
        message = "the source is nested too deeply"
    except ValueError as error:
        message = str(error)
    text = "".join(source.split("\n", line)[line - 1 : line])
    return Broken(line, text.strip()[:120], message)


def _before_line(text: str, line: int) -> str:
    """Cut a text off before the statement that holds this line."""
    lines = text.split("\n", line)[:line]
    while lines and (not lines[-1].strip() or lines[-1][0] in " \t)]}"):
        lines.pop()
    return "".join(f"{one}\n" for one in lines[:-1])


MOST_FENCES = 16  # fences behind the first bare one among which the end of a block is looked for
_CODE_LINE = re.compile(r"^(?:import [A-Za-z_]|from [\w.]+ import |class \w+[ \t]*[(:]|def \w+\(|@\w)", re.MULTILINE)
"""A line that a program may begin with."""
_STATEMENT = re.compile(rf"[ \t)\]}}@]|(?:{'|'.join(keyword.kwlist)})\b|[\w.\[\]]+[ \t]*(?:[-+*/]?=|\()")
"""A line that is hardly prose."""
_FENCE = re.compile(r"^(?P<margin>[ \t]*+(?:(?:[-*+]|\d+[.)])[ \t]++)*+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^`\n]*)$", re.M)
"""CommonMark's fence, also behind list markers and however far in."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a text that may be a program."""

    text: str
    origin: str  # its kind, for readers: `fenced block`
    start: int
    end: int  # offsets of the block with its fences in the text that was read
    closed: bool  # whether a fence shows that the model meant to stop here


def fenced_blocks(text: str, parser: Parser) -> list[Block]:
    """Find the fenced blocks, in order and without overlap.

    CommonMark ends a block at the first bare fence, also at one in a docstring; here a later end may make it a whole
    program. A block whose closing fence was forgotten ends where the next begins, unless it is a whole program.
    """
    fences = list(_FENCE.finditer(text))
    blocks: list[Block] = []
    at = 0
    while at < len(fences):
        stop = _closing(fences, at, parser)
        heads = [inner for inner in range(at + 1, stop) if fences[inner]["info"].strip()]
        if heads and parser.is_whole(_body(fences, at, stop)):
            heads = []
        for head, end in pairwise([at, *heads, stop]):
            closed = end == stop < len(fences)
            last = fences[end] if end < len(fences) else None
            behind = len(text) if last is None else last.end() if closed else last.start()
            blocks.append(Block(_body(fences, head, end), "fenced block", fences[head].start(), behind, closed))
        at = stop + 1
    return blocks


def _closing(fences: list[re.Match[str]], head: int, parser: Parser) -> int:
    """Find the fence that ends the block: the first bare one, or the first outside the strings of a program."""
    first = next((at for at in range(head + 1, len(fences)) if _closes(fences[at], fences[head])), len(fences))
    if first == len(fences) or not _in_string(_body(fences, head, first)):
        return first
    for later in range(first + 1, min(len(fences), first + MOST_FENCES)):
        infos = [fence["info"].strip() for fence in fences[head + 1 : later]]
        looks_nested = bool(infos[0]) or not any(infos)
        if looks_nested and _closes(fences[later], fences[head]) and parser.is_whole(_body(fences, head, later)):
            return later
    return first


def _in_string(source: str) -> bool:
    """Tell whether a text seems to end within a string of three quotes."""
    return any(source.count(quotes) % 2 for quotes in ('"""', "'''"))


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    """Tell whether a fence is bare, of the same character, at least as long, and hardly further in."""
    is_level = len(fence["margin"]) <= len(opening["margin"]) + 3
    return is_level and not fence["info"].strip() and fence["run"].startswith(opening["run"])


def _body(fences: list[re.Match[str]], at: int, stop: int) -> str:
    """Cut out the lines between two fences, less the indentation of the first that is not blank."""
    end = fences[stop].start() if stop < len(fences) else None
    text = fences[at].string[fences[at].end() + 1 : end]
    margin = re.match(r"(?:[ \t]*+\n)*+([ \t]*+)", text)
    width = len(margin[1]) if margin else 0
    return re.sub(rf"^[ \t]{{1,{width}}}", "", text, flags=re.MULTILINE) if width else text


def _raw_code(text: str, blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield what is outside the closed blocks, each part from its first line of code on, the last part first."""
    closed = [block for block in blocks if block.closed]
    parts = zip([0, *(one.end for one in closed)], [*(one.start for one in closed), len(text)], strict=True)
    for begin, end in reversed(list(parts)):
        if match := _CODE_LINE.search(text, begin, end):
            code = text[match.start() : min(end, match.start() + LONGEST_SOURCE + 1)]
            yield Block(code, "raw code", match.start(), end, closed=False)


LONGEST_REPLY = 1_000_000  # characters that are read, counted from the end: far above any honest reply
MOST_TAGS = 64  # tags of reasoning that are looked at
_WORDS = "(?:think|thinking|thought|thoughts|reasoning|seed:think)"
_CLOSING = re.compile(rf"(?<![^`][`\"'])(?:</{_WORDS}>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>)", re.IGNORECASE)
"""A closing tag, unless a single quotation mark is before it."""
_OPENING = re.compile(rf"^[ \t]*(?:<{_WORDS}>|\[THINK\]|◁think▷|<\|START_THINKING\|>)", re.IGNORECASE | re.MULTILINE)
_CHANNEL = re.compile(r"<\|channel\|>[ \t]*(\w+)[^<\n]*<\|message\|>", re.IGNORECASE)
_CONTROL = re.compile(r"<\|(?:start|end|message|channel|return|im_start|im_end|eot_id|endoftext)\|>")
IN_REPLY, AFTER_REASONING, NEVER_CLOSES = "in the reply", "after the reasoning", "in reasoning that never closes"


def _normalised(text: str) -> str:
    """Make `\\n` the only newline, drop byte order marks and control tokens, replace channels by think tags."""
    text = text[-LONGEST_REPLY:].replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")
    text = _CHANNEL.sub(lambda match: "\n</think>\n" if match[1].lower() == "final" else "\n<think>\n", text)
    return _CONTROL.sub("\n", text)


def _split(text: str, parser: Parser) -> Iterator[tuple[str, str]]:
    """Yield the answer, then the reasoning: behind a tag that opens after it, then before the last closing tag."""
    has_tags = _CLOSING.search(text) or _OPENING.search(text)
    closed = [block for block in fenced_blocks(text, parser) if block.closed] if has_tags else []

    def around(tag: re.Match[str]) -> list[Block]:
        return [block for block in closed if block.start <= tag.start() < block.end]

    closing = list(_CLOSING.finditer(text))[: -MOST_TAGS - 1 : -1]
    last = next((tag for tag in closing if not any(parser.is_whole(one.text) for one in around(tag))), None)
    start = last.end() if last else 0
    opening = islice(_OPENING.finditer(text, start), MOST_TAGS)
    again = next((tag for tag in opening if not around(tag)), None)
    yield (AFTER_REASONING if last or again else IN_REPLY), text[start : again.start() if again else None]
    if again:
        yield NEVER_CLOSES, text[again.end() :]
    if last:
        yield "in the reasoning", text[: last.start()]


class Program(NamedTuple):
    """A module that defines the entry class."""

    block: Block
    module: Module
    closed: bool  # a fence or a marker shows where the model meant the code to end


@dataclass
class Zone:
    """Part of a reply, such as the answer; `failures` holds blocks that do not parse, the last one first."""

    place: str
    text: str
    entry: str
    parser: Parser
    failures: list[tuple[Block, Broken]] = field(default_factory=list)

    @property
    def is_answer(self) -> bool:
        """Tell whether it is the answer rather than reasoning."""
        return self.place in (IN_REPLY, AFTER_REASONING)

    @cached_property
    def blocks(self) -> list[Block]:
        return fenced_blocks(self.text, self.parser)

    @cached_property
    def named(self) -> list[Block]:
        return [block for block in self.blocks if self.entry in block.text]

    @cached_property
    def found(self) -> Program | None:
        """The last block that parses and defines the entry class; where there is none, the last code without fences."""
        for block in (*reversed(self.named), *_raw_code(self.text, self.blocks)):
            read = self.parser.read(block.text) if block.closed else self.parser.trimmed(block.text)
            if isinstance(read, Module) and read.defines(self.entry):
                closed = block.closed or block.text[len(read.source) :].lstrip().startswith(("```", "~~~"))
                return Program(block, read, closed)
            if isinstance(read, Broken) and self.entry in block.text and _CODE_LINE.search(block.text):
                self.failures.append((block, read))
        return None

    def cut_by_provider(self) -> str | None:
        """Say where the provider stopped the reply; None where the final answer was complete by then."""
        if not self.is_answer:
            return "The reply was cut off before an answer followed the reasoning."
        for block in self.blocks:
            if not block.closed:
                line = self.text[: block.start].lstrip("\n").count("\n") + 1
                return f"The reply was cut off in the {block.origin} that begins on line {line} of the answer."
        found = self.found
        is_whole = found.closed and found.module.imports_torch if found else any(one.closed for one, _ in self.failures)
        return None if is_whole else f"The reply was cut off before a complete block that defines {self.entry}."

    def cut_by_shape(self) -> str | None:
        """Say where the last code breaks off, though the provider does not say so; None where it does not.

        A bracket that stays open shows that, unless statements follow: then its closing one was forgotten.
        """
        failed = [] if self.found else [block for block, _ in self.failures]
        last = next((block for block in [*self.blocks[-1:], *failed] if not block.closed), None)
        is_code = last is not None and _CODE_LINE.search(last.text) and (self.is_answer or self.place == NEVER_CLOSES)
        if last is None or not is_code or isinstance(self.parser.trimmed(last.text), Module):
            return None
        error, lines = self.parser.read(last.text), last.text.rstrip().split("\n")
        if isinstance(error, Module):
            return None
        if not _in_string(last.text):
            is_open = sum(map(last.text.count, "([{")) > sum(map(last.text.count, ")]}"))
            rest = "\n".join(lines[error.line :])
            goes_on = re.search(r"^[ \t]*(?:def|class|return|import|while|with)\b", rest, re.MULTILINE)
            if not _STATEMENT.match(lines[-1]) or (error.line < len(lines) and (goes_on or not is_open)):
                return None
        return f"The last {last.origin} breaks off in the middle (line {error.line}, {error.text!r})."


def _extracted(zones: Sequence[Zone], found: Program, truncated: bool) -> Extraction:
    """Describe the program in the last of the zones; none before it has one."""
    zone, how = zones[-1], found.block.origin
    if found.block in zone.named:
        how += f", {zone.named.index(found.block) + 1} of {len(zone.named)} that name {zone.entry}"
    doubts = ["The reply was cut off behind this block."] if truncated else []
    if not zone.is_answer:
        doubts.append("The code stands in the reasoning, and no usable code follows it.")
    for block, error in (zone.failures[0] for zone in zones if zone.failures):
        doubts.append(f"A {block.origin} has a syntax error on its line {error.line} and was skipped: {error.message}.")
    if not found.closed:
        doubts.append(f"Nothing closes the {found.block.origin}: more may have been meant to follow.")
    if not found.module.imports_torch:
        doubts.append("The source does not import torch.")
    return Extraction(
        source=f"{found.module.source.strip(chr(10))}\n",
        how=f"{how}, {zone.place}",
        language=language_of(found.module.tree),
        warnings=tuple(doubts),
    )


_REFUSAL = re.compile(
    r"\bI(?:['\u2019]m| am) (?:very |really |so )?(?:sorry|unable|not able)\b|\bas an AI\b|\bunable to (?:help|assist)"
    r"|\bI (?:cannot|can['\u2019]t|won['\u2019]t|will not|must decline)\b|\bagainst (?:my|our) (?:guidelines|polic)",
    re.IGNORECASE,
)
_C_LINE = re.compile(r"__global__|^[ \t]*#include\b|\btorch::Tensor\b", re.MULTILINE)
MOST_BLOCKS = 8  # last blocks in which other code is looked for


def _diagnosed(zones: Sequence[Zone], entry: str) -> NotExtracted:
    """Diagnose a reply that offers no candidate; the zones come in the order of preference."""
    for block, error in (zone.failures[0] for zone in zones if zone.failures):
        what = f"The last {block.origin} that names {entry} has a syntax error"
        detail = f"{what} on line {error.line}, {error.text!r}: {error.message}."
        return NotExtracted(kind="syntax_error", detail=detail)
    for other in filter(None, map(_other_code, zones)):
        return NotExtracted(kind="no_entry_point", detail=f"Found {other}; need class {entry} at the top level.")
    text = zones[0].text.strip()
    if zones[0].is_answer and (refusal := _REFUSAL.search(text[:20_000])):
        words = text[refusal.start() :][:80].partition("\n")[0]
        return NotExtracted(kind="refusal", detail=f"The reply declines to answer: {words!r}.")
    what = "reply" if zones[0].is_answer else "reply, which ends with its reasoning"
    begin = text[:80].partition("\n")[0]
    detail = f"There is no code in the {what}. It has {len(text)} characters and begins {begin!r}."
    return NotExtracted(kind="no_code", detail=detail)


def _other_code(zone: Zone) -> str:
    """Name the code that a zone holds in place of the entry class; empty where it holds none."""
    blocks = [*zone.blocks[-MOST_BLOCKS:], *islice(_raw_code(zone.text, zone.blocks), MOST_BLOCKS)]
    modules = [read for block in blocks if isinstance(read := zone.parser.trimmed(block.text), Module)]
    found = [binding for module in modules for binding in module.bindings]
    names = dict.fromkeys(one.name[:60] for one in found if one.kind in ("class", "function"))
    if found:
        return ", ".join([*names][:8]) or "Python statements but no class"
    is_code = any(_CODE_LINE.search(block.text) or _C_LINE.search(block.text) for block in blocks)
    return "code that is no Python module" if is_code else ""
