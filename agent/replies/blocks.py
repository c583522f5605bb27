"""The places of a text where a program may stand: fenced blocks, tags, JSON values, and raw lines of code.

CommonMark ends a block at the first bare fence, also where that stands in a docstring, and runs one whose closing fence
was forgotten on over the next. A rule of the Markdown parser mends both, only where the result is a whole program. A
block stands for a module by itself, or together with the blocks of the reply that it needs.
"""

import bisect
import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock

from kernelwright.agent.replies.modules import LONGEST_SOURCE, Broken, Module, Parser, dedented, leaves_string_open

MOST_LONGER = 50
"""Blocks of a text that end within a string and whose true end is looked for."""
MOST_ENDS = 8
"""Ends that are tried for one block."""
MOST_LINES = 10_000
"""Lines of a block in which later ends are looked for."""
PROGRAM_LANGUAGES = frozenset(
    {"python", "py", "python3", "py3", "pytorch", "torch", "triton", "tilelang", "helion", "cute"}
    | {"cutlass", "cuda", "cu", "cpp", "c++", "cc", "c"}
)
OTHER_LANGUAGES = frozenset({"bash", "sh", "shell", "console", "text", "txt", "json", "diff", "markdown", "md", "yaml"})
"""Languages that no candidate is written in."""
KNOWN_LANGUAGES = PROGRAM_LANGUAGES | OTHER_LANGUAGES
_OPENING = re.compile(
    r"(?P<ticks>`{3,}+)(?P<info>[^`\n]*)|(?P<tildes>~{3,}+)(?P<note>[^\n]*)|[^`\n]++```[ \t]*(?P<language>[\w+]+)[ \t]*"
)
"""CommonMark's fences, or prose with three backticks and a language behind it."""
_FENCE_INFO = re.compile(r"^[ \t]*(?:`{3,}+|~{3,}+)[ \t]*(\w*)", re.MULTILINE)
_LOOSE_END = re.compile(r"(?:^[ \t]*(?:`{3,}+|~{3,}+)|(?<=[^`\n])```)[ \t]*$", re.MULTILINE)
"""A fence too short or too far in to close the block, or stuck to the end of a line of code."""


@dataclass(frozen=True, slots=True)
class Block:
    text: str
    origin: str
    """Where it stood, as a reader would say it: `fenced block`, `<code> tag`."""
    start: int
    end: int
    """Offsets of the block with its marks in the text that was read."""
    closed: bool = True
    """Whether an end mark shows that the model meant to stop here."""
    language: str = ""
    """What its fence calls it, lower case."""

    @property
    def may_be_program(self) -> bool:
        """Whether nothing says that it is another kind of text: a shell command, a table of results."""
        return self.language not in OTHER_LANGUAGES


@dataclass(frozen=True, slots=True)
class _Opening:
    line: int
    run: str
    language: str


def fence_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read the block that begins at line `start`, or the several ones that nothing closes before the next begins."""
    opening = _opening(state, start)
    if opening is None or silent:
        return opening is not None
    closing = _closing(state, opening, end)
    heads = [opening]
    body = _body(state, start, closing)
    if "```" in body or "~~~" in body:
        inner = (_opening(state, line) for line in range(start + 1, closing))
        again = [one for one in inner if one and one.language in KNOWN_LANGUAGES and _is_level(state, one.line, start)]
        heads += again if again and not state.env["parser"].is_whole(body) else []
    for head, stop in zip(heads, [*(one.line for one in heads[1:]), closing], strict=True):
        state.env["blocks"].append(_block(state, head, stop, closed=stop == closing < end))
    state.line = min(closing + 1, end)
    return True


def _opening(state: StateBlock, line: int) -> _Opening | None:
    match = _OPENING.fullmatch(state.src, state.bMarks[line] + state.tShift[line], state.eMarks[line])
    if match is None or (match["language"] and match["language"].lower() not in KNOWN_LANGUAGES):
        return None
    info = match["info"] or match["note"] or match["language"] or ""
    language = re.split(r"[\s{}.,:;=]+", info.strip(" \t{."), maxsplit=1)[0].lower()
    return _Opening(line, match["ticks"] or match["tildes"] or "```", language)


def _closing(state: StateBlock, opening: _Opening, end: int) -> int:
    """The line of the closing fence: the first one, or the first outside the strings of a program; `end` for none."""
    first = next(_closings(state, opening, end), end)
    if first == end or not state.env["longer"] or not leaves_string_open(_body(state, opening.line, first)):
        return first
    state.env["longer"] -= 1
    later = islice(_closings(state, opening, min(end, opening.line + MOST_LINES)), 1, MOST_ENDS)
    for line in later:
        body = _body(state, opening.line, line)
        infos = _FENCE_INFO.findall(body)
        if (infos[0] or not any(infos)) and state.env["parser"].is_whole(body):
            return line
    return first


def _closings(state: StateBlock, opening: _Opening, end: int) -> Iterator[int]:
    """Bare fences of the same character, at least as long, and not indented further than the block."""
    mark = opening.run[0]
    for line in range(opening.line + 1, end):
        begin = state.bMarks[line] + state.tShift[line]
        if state.src[begin : begin + 1] == mark:
            text = state.src[begin : state.eMarks[line]].rstrip()
            if len(text) >= len(opening.run) and not text.strip(mark) and _is_level(state, line, opening.line):
                yield line


def _is_level(state: StateBlock, line: int, start: int) -> bool:
    return state.sCount[line] <= state.sCount[start] + 3


def _body(state: StateBlock, start: int, stop: int) -> str:
    indents = (state.sCount[line] for line in range(start + 1, stop) if not state.isEmpty(line))
    return state.getLines(start + 1, stop, min(state.sCount[start], min(indents, default=0)), True)


def _block(state: StateBlock, head: _Opening, stop: int, closed: bool) -> Block:
    """The block from line `head` to line `stop`; an open one ends at the first loose end that makes it whole."""
    text, start = _body(state, head.line, stop), state.bMarks[head.line]
    if closed:
        return Block(text, "fenced block", start, state.eMarks[stop], True, head.language)
    for loose in islice(_LOOSE_END.finditer(text), MOST_ENDS):
        code = text[: loose.start()]
        if code.strip() and state.env["parser"].is_whole(code):
            end = state.eMarks[head.line] + 1 + loose.end()
            return Block(code, "fenced block", start, end, True, head.language)
    return Block(text, "fenced block", start, state.bMarks[stop], False, head.language)


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


MOST_PARTS = 8
"""Blocks that one module is put together from, and blocks that are looked at in search of a missing name."""


@dataclass(frozen=True, slots=True)
class Program:
    block: Block
    module: Module
    parts: int = 1
    """Blocks that the module was put together from."""
    dropped: str = ""
    """Prose that stood behind the code in an unclosed block."""
    closed: bool = True
    """Whether something shows where the model meant the code to end."""


def read_block(blocks: Sequence[Block], index: int, entry: str, parser: Parser) -> Program | Broken:
    """The module that block `index` stands for, joined with its continuation or with what it needs from above."""
    block = blocks[index]
    own = read_alone(block, parser)
    if isinstance(own, Broken):
        return _split_in_strings(blocks, index, entry, parser) or own
    if not own.module.defines(entry):
        return own
    own = _continued(blocks, index, own, parser)
    return _supplied(blocks, index, own, parser)


def read_alone(block: Block, parser: Parser) -> Program | Broken:
    """The block as a module; an unclosed one up to where prose begins."""
    found = parser.read(block.text)
    if isinstance(found, Broken) and _is_indented(block):
        found = parser.read(dedented(block.text))
    if block.closed:
        return found if isinstance(found, Broken) else Program(block, found)
    trimmed = parser.trimmed(block.text)
    if isinstance(trimmed, Broken):
        return trimmed
    module, dropped = trimmed
    return Program(block, module, dropped=dropped, closed=dropped.lstrip().startswith(("```", "~~~")))


def _is_indented(block: Block) -> bool:
    return block.text.lstrip("\n")[:1] in (" ", "\t")


def _continued(blocks: Sequence[Block], index: int, own: Program, parser: Parser) -> Program:
    """With the blocks behind it that begin indented: the rest of a class that was cut into several blocks."""
    source, last = own.module.source, index
    for follower in range(index + 1, min(len(blocks), index + MOST_PARTS)):
        if not _is_indented(blocks[follower]) or not blocks[follower].may_be_program:
            break
        source, last = f"{source.rstrip()}\n\n{blocks[follower].text}", follower
    joined = parser.read(source) if last > index else None
    if not isinstance(joined, Module):
        return own
    return Program(blocks[last], joined, last - index + 1, closed=blocks[last].closed)


def _split_in_strings(blocks: Sequence[Block], index: int, entry: str, parser: Parser) -> Program | None:
    """With the blocks directly above it: a module cut in the middle of a statement or of a string."""
    source = blocks[index].text
    if not blocks[index].closed:
        return None
    for parts in range(2, MOST_PARTS // 2 + 1):
        above = index - parts + 1
        if above < 0 or not blocks[above].closed or not blocks[above].may_be_program:
            return None
        source = f"{blocks[above].text.rstrip(chr(10))}\n{source}"
        joined = parser.read(source)
        if isinstance(joined, Module) and joined.defines(entry):
            return Program(blocks[index], joined, parts)
    return None


def _supplied(blocks: Sequence[Block], index: int, own: Program, parser: Parser) -> Program:
    """With the blocks above it that bind the names which it reads and does not bind."""
    missing = set(own.module.missing)
    chosen: list[str] = []
    for above in range(index - 1, max(-1, index - 1 - MOST_PARTS), -1):
        block = blocks[above]
        part = parser.read(block.text) if missing and block.closed and block.may_be_program else None
        if isinstance(part, Module) and missing & part.binds:
            missing = (missing - part.binds) | part.missing
            chosen.insert(0, part.source.rstrip())
    if not chosen:
        return own
    joined = parser.read("\n\n\n".join([*chosen, own.module.source]))
    if not isinstance(joined, Module):
        return own
    return Program(own.block, joined, own.parts + len(chosen), own.dropped, own.closed)
