"""Fenced blocks, as a rule of the Markdown parser that mends CommonMark's where models break it.

CommonMark ends a block at the first bare fence, also where that stands in a docstring, and runs one whose closing fence
was forgotten on over the next. Both are mended only where the result is a whole program.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from markdown_it.rules_block import StateBlock

from kernelwright.agent.replies.strings import leaves_string_open

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
    """A text that may be the candidate, or a part of it."""

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
    bodies = ((line, _body(state, opening.line, line)) for line in later)
    return next((line for line, body in bodies if not _goes_on(body) and state.env["parser"].is_whole(body)), first)


def _goes_on(body: str) -> bool:
    """Whether a block ends and another begins in `body`: a string cut in two, not one that quotes an example."""
    infos = _FENCE_INFO.findall(body)
    return not infos[0] and any(infos)


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
    """The lines between two fences, less the indentation that they share with the first."""
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
