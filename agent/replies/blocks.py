"""The places of a zone where a program may stand: fenced blocks, tags, JSON strings, and raw lines of code."""

import bisect
import html
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelwright.agent.replies.fences import OTHER_LANGUAGES, Fence, read_fences
from kernelwright.agent.replies.modules import Parser
from kernelwright.agent.replies.strings import LONGEST_SOURCE

MOST_JSON_VALUES = 8
MOST_TAGS = 1000
"""Tags that are looked at, counted from the end of the zone."""
MOST_RAW_ENTRIES = 4
MOST_RAW_STARTS = 200
_TAG = re.compile(
    r"(?:(?:^|(?<=>))[ \t]*)?<(?P<slash>/?)"
    r"(?P<name>code|python|answer|final_answer|solution|kernel|cuda|triton|output|response|file|source|modelnew)"
    r"(?:[ \t][^<>\n]*)?>",
    re.IGNORECASE | re.MULTILINE,
)
_JSON_START = re.compile(r"^[ \t]*(?:\[\s*)?\{\s*\"", re.MULTILINE)
RAW_START = re.compile(
    r"^(?:import [A-Za-z_]|from [A-Za-z_.][\w.]* import |class [A-Za-z_]\w*[ \t]*[(:]|def [A-Za-z_]\w*\(|@[A-Za-z_])",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A text that may be the candidate, or a part of it."""

    text: str
    origin: str
    """Where it stood, as a reader would say it: `fenced block`, `<code> tag`."""
    start: int
    end: int
    """Offsets in the zone; of the whole JSON value for a string in it."""
    closed: bool = True
    """Whether an end mark shows that the model meant to stop here."""
    language: str = ""
    """What its fence calls it, lower case."""

    @property
    def may_be_program(self) -> bool:
        """Whether nothing says that it is another kind of text: a shell command, a table of results."""
        return self.language not in OTHER_LANGUAGES


def explicit_blocks(text: str, parser: Parser) -> list[Block]:
    """Blocks that marks set off from the prose, in the order of their ends."""
    fences = read_fences(text, parser.is_whole)
    blocks = [part for fence in fences for part in _of_fence(fence, parser)]
    blocks += _tagged(text, fences, parser)
    blocks += _json_blocks(text, fences, parser)
    return sorted(blocks, key=lambda block: (block.end, -block.start))


def raw_blocks(text: str, entry: str, explicit: list[Block], parser: Parser) -> Iterator[Block]:
    """For each place outside closed blocks where `entry` is defined, the code around it; the last one first."""
    definitions = re.compile(rf"^(?:class[ \t]+{re.escape(entry)}\b|{re.escape(entry)}[ \t]*=)", re.MULTILINE)
    closed = [block for block in explicit if block.closed]
    found = [match.start() for match in definitions.finditer(text)][-MOST_RAW_ENTRIES:]
    for at in reversed(found):
        if not any(block.start <= at < block.end for block in closed):
            start = _raw_start(text, at, parser)
            yield Block(text[start : start + LONGEST_SOURCE + 1], "raw code", start, len(text), closed=False)


def _raw_start(text: str, at: int, parser: Parser) -> int:
    """The first line of code from which everything up to the class at `at` parses.

    Prose or a fence in between breaks the parse from every earlier line, so that a search by halves finds it.
    """
    near = max(0, at - LONGEST_SOURCE // 2)
    starts = [*[match.start() for match in RAW_START.finditer(text, near, at)][-MOST_RAW_STARTS:], at]
    first = bisect.bisect_left(starts, True, key=lambda start: parser.is_whole(text[start:at] + "class C: pass\n"))
    return starts[min(first, len(starts) - 1)]


def _of_fence(fence: Fence, parser: Parser) -> list[Block]:
    block = Block(fence.text, "fenced block", fence.start, fence.end, fence.closed, fence.language)
    if fence.text.lstrip().startswith(("{", "[")):
        inner = list(_json_strings(fence.text, len(fence.text) - len(fence.text.lstrip()), parser))
        if inner:
            return [replace(one, start=fence.start, end=fence.end, closed=fence.closed) for one in inner]
    return [block]


def _tagged(text: str, fences: list[Fence], parser: Parser) -> list[Block]:
    """What stands in the last pairs of tags outside fences, and behind a tag that stays open."""
    inside = [(fence.start, fence.end) for fence in fences]
    blocks: list[Block] = []
    opened: dict[str, re.Match[str]] = {}
    for tag in list(_TAG.finditer(text))[-MOST_TAGS:]:
        at = bisect.bisect_right(inside, (tag.end(), 0)) - 1
        if at >= 0 and tag.end() <= inside[at][1]:
            continue
        name = tag["name"].lower()
        if not tag["slash"] and _opens_line(tag):
            opened[name] = tag
        elif tag["slash"] and name in opened:
            blocks.append(_tag_block(text, opened.pop(name), tag))
    blocks += [_tag_block(text, tag, None) for tag in opened.values()]
    return [
        block for block in map(_unescaped, blocks) if not _holds_fence(block, fences) or parser.is_whole(block.text)
    ]


def _opens_line(tag: re.Match[str]) -> bool:
    """Whether the tag begins or ends a line, as marks do and mentions in a sentence do not."""
    text = tag.string
    begins = tag.start() == 0 or text[tag.start() - 1] in "\n>"
    return begins or text[tag.end() : tag.end() + 1] == "\n"


def _tag_block(text: str, opening: re.Match[str], closing: re.Match[str] | None) -> Block:
    stop = len(text) if closing is None else closing.start()
    end = len(text) if closing is None else closing.end()
    origin = f"<{opening['name'].lower()}> tag"
    return Block(text[opening.end() : stop], origin, opening.start(), end, closing is not None)


def _unescaped(block: Block) -> Block:
    text = re.sub(r"\A\s*<!\[CDATA\[|\]\]>\s*\Z", "", block.text).lstrip("\n")
    if "&lt;" in text or "&quot;" in text:
        text = html.unescape(text)
    return replace(block, text=text)


def _holds_fence(block: Block, fences: list[Fence]) -> bool:
    at = bisect.bisect_left(fences, block.start, key=lambda fence: fence.start)
    return at < len(fences) and fences[at].start < block.end


def _json_blocks(text: str, fences: list[Fence], parser: Parser) -> Iterator[Block]:
    """Strings of the JSON values that begin a line outside fences."""
    behind = 0
    for match in itertools.islice(_JSON_START.finditer(text), MOST_JSON_VALUES):
        at = bisect.bisect_right(fences, match.start(), key=lambda fence: fence.start) - 1
        if match.start() >= behind and not (at >= 0 and match.start() < fences[at].end):
            found = list(_json_strings(text, match.start(), parser))
            behind = max((block.end for block in found), default=0)
            yield from found or _cut_json(text, match.start())


def _cut_json(text: str, start: int) -> list[Block]:
    """The value that a reply begins with and does not bring to its end."""
    if text[:start].strip() or text.rstrip().endswith(("}", "]")):
        return []
    return [Block(text[start:], "JSON value", start, len(text), closed=False)]


def _json_strings(text: str, start: int, parser: Parser) -> Iterator[Block]:
    """The programs among the strings of the JSON value that begins at `start`, or near it behind blanks."""
    at = start + len(text[start : start + 1000]) - len(text[start : start + 1000].lstrip())
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, at)
    except (ValueError, RecursionError):
        return
    for key, string in _strings(value):
        fences = read_fences(string, parser.is_whole)
        for text_of in [fence.text for fence in fences] or [string]:
            yield Block(text_of, f"JSON string {key!r}" if key else "JSON string", start, end)


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Each string of several lines in a JSON value with the key that it stands under, in order."""
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        key, one = waiting.pop()
        if isinstance(one, str) and "\n" in one:
            yield key[:40], one
        elif isinstance(one, dict):
            waiting.extend(reversed([(str(name), item) for name, item in one.items()]))
        elif isinstance(one, list):
            waiting.extend((key, item) for item in reversed(one))
