"""The places of a text where a program may stand: fenced blocks, tags, JSON values, and raw lines of code."""

import bisect
import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock

from kernelwright.agent.replies.fences import MOST_LONGER, Block, fence_rule
from kernelwright.agent.replies.modules import Parser
from kernelwright.agent.replies.strings import LONGEST_SOURCE

MOST_JSON_VALUES = 8
MOST_TAGS = 100
"""Tags of a text that are looked at."""
MOST_RAW_ENTRIES = 4
MOST_RAW_STARTS = 200
_TAG = re.compile(
    r"(?:(?:[^<\n]*+(?=<[^<>\n]*>[ \t]*$))|(?:<[^<>\n]*>[ \t]*)*)"
    r"<(code|python|answer|final_answer|solution|kernel|cuda|triton|output|response|file|source|modelnew)"
    r"(?:[ \t][^<>\n]*)?>",
    re.IGNORECASE | re.MULTILINE,
)
_MARK = re.compile(rf"^[ \t]*(?:```|~~~|{_TAG.pattern})", re.IGNORECASE | re.MULTILINE)
_JSON_START = re.compile(r"[ \t]*(?:\[\s*)?\{\s*\"")
RAW_START = re.compile(
    r"^(?:import [A-Za-z_]|from [A-Za-z_.][\w.]* import |class [A-Za-z_]\w*[ \t]*[(:]|def [A-Za-z_]\w*\(|@[A-Za-z_])",
    re.MULTILINE,
)


def marked_blocks(text: str, parser: Parser) -> list[Block]:
    """Blocks that marks set off from the prose, in order and without overlap."""
    blocks: list[Block] = []
    limits = {"longer": MOST_LONGER, "tags": MOST_TAGS, "values": MOST_JSON_VALUES}
    _MARKDOWN.block.parse(text, _MARKDOWN, {"blocks": blocks, "parser": parser, **limits}, [])
    return [one for block in blocks for one in _json_strings(block, parser) or [block]]


def _line_rule(state: StateBlock, start: int, _end: int, _silent: bool) -> bool:
    """A line of prose. Each stands for itself, since models begin blocks in the middle of a paragraph."""
    state.line = start + 1
    return True


def _tag_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """What stands in a pair of tags, or behind one that stays open, unless it holds marks and is no program itself."""
    begin = state.bMarks[start] + state.tShift[start]
    opening = _TAG.match(state.src, begin, state.eMarks[start])
    if opening is None or not state.env["tags"]:
        return False
    state.env["tags"] -= 1
    name = opening[1].lower()
    closing = re.compile(f"</{name}>", re.IGNORECASE).search(state.src, opening.end())
    stop, behind = closing.span() if closing else (len(state.src), len(state.src))
    text = re.sub(r"\A\s*<!\[CDATA\[|\]\]>\s*\Z", "", state.src[opening.end() : stop]).lstrip("\n")
    text = html.unescape(text) if "&lt;" in text or "&quot;" in text else text
    if _MARK.search(text) and not state.env["parser"].is_whole(text):
        return False
    if not silent:
        state.env["blocks"].append(Block(text, f"<{name}> tag", begin, behind, closing is not None))
        state.line = min(end, max(start + 1, bisect.bisect_left(state.bMarks, behind)))
    return True


def _json_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A JSON value that begins a line, or one that the text begins with and does not bring to its end."""
    begin = state.bMarks[start]
    if not _JSON_START.match(state.src, begin) or not state.env["values"]:
        return False
    state.env["values"] -= 1
    stop = _json_value(state.src[begin:])[1]
    cut = not stop and not state.src[:begin].strip() and not state.src.rstrip().endswith(("}", "]"))
    if silent or not (stop or cut):
        return bool(stop or cut)
    behind = begin + stop if stop else len(state.src)
    state.env["blocks"].append(Block(state.src[begin:behind], "JSON value", begin, behind, closed=bool(stop)))
    state.line = start + 1 if cut else min(end, bisect.bisect_left(state.bMarks, behind))
    return True


_MARKDOWN = MarkdownIt("commonmark")
for _name, _rule in {"block": fence_rule, "json": _json_rule, "tag": _tag_rule}.items():
    _MARKDOWN.block.ruler.after("list", _name, _rule, {"alt": ["list"]})
_MARKDOWN.block.ruler.at("paragraph", _line_rule)
_MARKDOWN.block.ruler.enableOnly(["list", "tag", "json", "block", "paragraph"])


def _json_value(text: str) -> tuple[object, int]:
    """The value that the text begins with behind blanks, and the offset of its end; 0 where there is none."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return None, 0


def _json_strings(block: Block, parser: Parser) -> list[Block]:
    """The programs among the strings of a block that is a JSON value."""
    if block.text.lstrip()[:1] not in ("{", "["):
        return []
    return [
        replace(block, text=one.text, origin=f"JSON string {key!r}" if key else "JSON string", language="")
        for key, string in _strings(_json_value(block.text)[0])
        for one in marked_blocks(string, parser) or [replace(block, text=string)]
    ]


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


def raw_blocks(text: str, entry: str, marked: list[Block], parser: Parser) -> Iterator[Block]:
    """For each place outside closed blocks where `entry` is defined, the code around it; the last one first."""
    definitions = re.compile(rf"^(?:class[ \t]+{re.escape(entry)}\b|{re.escape(entry)}[ \t]*=)", re.MULTILINE)
    closed = [block for block in marked if block.closed]
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
