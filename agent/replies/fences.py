"""Fenced blocks of a Markdown text, read as CommonMark does and then mended where models break its rules.

CommonMark alone ends a block at the first bare fence line, also where that line stands in a docstring, and runs a block
whose closing fence was forgotten on over the next one. Both are mended only where the result is a whole program, which
the caller's `whole` decides.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelwright.agent.replies.strings import LONGEST_SOURCE, leaves_string_open, string_aware_end

Whole = Callable[[str], bool]
"""Says whether a text is a whole program by itself."""

MOST_MARKS = 20_000
"""Fence lines that are looked at, counted from the end of the text: no honest reply has more."""
MOST_LOOSE_ENDS = 4
SCAN_ALLOWANCE = 3_000_000
"""Characters that the search for ends outside strings may read in all, so that a hostile text costs seconds at most."""
PREFIX = r"([ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)"
"""Indentation and at most one list marker."""
FENCE_LINE = re.compile(PREFIX + r"(`{3,}|~{3,})(.*)")
RUN = re.compile(r"`{3,}|~{3,}")
PROGRAM_LANGUAGES = frozenset(
    {"python", "py", "python3", "py3", "pytorch", "torch", "triton", "cuda", "cu", "cpp", "c++", "cc", "c"}
)
OTHER_LANGUAGES = frozenset({"bash", "sh", "shell", "console", "text", "txt", "json", "diff", "markdown", "md", "yaml"})
"""Languages that no candidate is written in."""
KNOWN_LANGUAGES = PROGRAM_LANGUAGES | OTHER_LANGUAGES


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block."""

    language: str
    """First word of the info string, lower case; empty where there is none."""
    text: str
    """What stands between the fences, less the indentation of the opening one."""
    start: int
    """Offset of the opening line in the text that was read."""
    end: int
    """Offset behind the closing line, or behind the last line of the block where nothing closes it."""
    closed: bool


@dataclass(frozen=True, slots=True)
class _Mark:
    """A line that holds a run of at least three backticks or tildes."""

    start: int
    end: int
    """Offset of the line's newline, or of the text's end."""
    indent: int
    run: str
    """The fence characters; empty where they do not open the line."""
    info: str
    listed: bool
    loose: bool
    """Whether a single run of backticks ends a line that begins with other text."""

    @property
    def language(self) -> str:
        words = re.split(r"[\s{}.,:;=]+", self.info.strip(" \t{."), maxsplit=1)
        return words[0].lower()

    def opens(self) -> bool:
        """CommonMark's rule, or prose followed by a fence that names a known language."""
        if self.loose:
            return self.info.strip().lower() in KNOWN_LANGUAGES
        return bool(self.run) and not (self.run[0] == "`" and "`" in self.info)

    def closes(self, opener: "_Mark") -> bool:
        """CommonMark's rule: same character, at least as long, bare, and not indented further than the block."""
        same = self.is_bare() and self.run[0] == opener.run[0]
        return same and len(self.run) >= len(opener.run) and self.indent <= opener.indent + 3

    def restarts(self, opener: "_Mark") -> bool:
        """Whether the mark, inside a block that is not whole, opens the next one: the closing fence is missing."""
        return self.opens() and self.language in KNOWN_LANGUAGES and self.indent <= opener.indent + 3

    def is_bare(self) -> bool:
        """Whether the line holds a fence and nothing else."""
        return bool(self.run) and not (self.listed or self.loose or self.info.strip())

    def code_end(self, text: str) -> int:
        """Offset where the code before an unorthodox closing fence ends."""
        return text.rfind("```", self.start, self.end) if self.loose else self.start


def read_fences(text: str, whole: Whole) -> list[Fence]:
    """The fenced blocks of `text` in order, without overlap. Takes linear time, apart from what `whole` takes."""
    return _Reader(text, whole).read()


class _Reader:
    def __init__(self, text: str, whole: Whole) -> None:
        self.text = text
        self.whole = whole
        self.marks = _marks(text)
        self.allowance = SCAN_ALLOWANCE

    def read(self) -> list[Fence]:
        fences: list[Fence] = []
        at = 0
        while at < len(self.marks):
            if self.marks[at].opens():
                found, at = self._read_one(at)
                fences.extend(found)
            else:
                at += 1
        return fences

    def _read_one(self, at: int) -> tuple[list[Fence], int]:
        """The block (or the several blocks) that mark `at` opens, and the index of the next mark to look at."""
        marks, opener = self.marks, self.marks[at]
        closer = next((i for i in range(at + 1, len(marks)) if marks[i].closes(opener)), len(marks))
        fence = self._fence(at, closer)
        if fence.closed and (longer := self._longer(opener, fence.text)) is not None:
            return [longer], next((i for i in range(closer, len(marks)) if marks[i].start >= longer.end), len(marks))
        inner = [i for i in range(at + 1, closer) if marks[i].restarts(opener)]
        if (fence.closed and not inner) or self.whole(fence.text):
            return [fence], closer + 1
        parts = zip([at, *inner], [*inner, closer], strict=True)
        return [self._part(head, end) for head, end in parts], closer + 1

    def _fence(self, at: int, end: int) -> Fence:
        """The block from mark `at` to mark `end`, which may be the closing fence, the next opening one, or none."""
        opener = self.marks[at]
        closer = self.marks[end] if end < len(self.marks) else None
        closed = closer is not None and closer.closes(opener)
        stop = len(self.text) if closer is None else closer.start
        body = _undent(self.text[min(opener.end + 1, stop) : stop], opener.indent)
        return Fence(opener.language, body, opener.start, closer.end if closer and closed else stop, closed)

    def _part(self, head: int, end: int) -> Fence:
        """As `_fence`, but an unclosed block ends at the first unorthodox closing fence that makes it whole."""
        fence, opener = self._fence(head, end), self.marks[head]
        if fence.closed:
            return fence
        for loose, _ in zip(self._loose_ends(head, end), range(MOST_LOOSE_ENDS), strict=False):
            body = _undent(self.text[opener.end + 1 : loose.code_end(self.text)], opener.indent)
            if body.strip() and self.whole(body):
                return Fence(opener.language, body, opener.start, loose.end, closed=True)
        return fence

    def _loose_ends(self, head: int, end: int) -> Iterator[_Mark]:
        """Fences too short or too far in to close the block, and those stuck to the end of a line of code."""
        marks = self.marks[head + 1 : end]
        return (mark for mark in marks if mark.is_bare() or (mark.loose and not mark.info.strip()))

    def _longer(self, opener: _Mark, body: str) -> Fence | None:
        """The block up to the first fence outside its strings, if it ends in one and so becomes whole."""
        if self.allowance <= 0 or not leaves_string_open(body):
            return None
        start, stop = opener.end + 1, min(len(self.text), opener.end + LONGEST_SOURCE)
        end = string_aware_end(self.text, start, stop, opener.run)
        self.allowance -= (stop if end is None else end[1]) - start
        if end is None:
            return None
        body = _undent(self.text[start : end[0]], opener.indent)
        return Fence(opener.language, body, opener.start, end[1], closed=True) if self.whole(body) else None


def _marks(text: str) -> list[_Mark]:
    lines: deque[tuple[int, int]] = deque(maxlen=MOST_MARKS)
    behind = 0
    while (run := RUN.search(text, behind)) is not None:
        start = text.rfind("\n", behind, run.start()) + 1 or behind
        end = text.find("\n", run.end())
        behind = len(text) if end < 0 else end
        lines.append((start, behind))
    return [_mark(text[start:end], start) for start, end in lines]


def _mark(line: str, start: int) -> _Mark:
    end = start + len(line)
    if (match := FENCE_LINE.match(line)) is not None:
        prefix, run, info = match.groups()
        return _Mark(start, end, len(prefix), run, info, bool(prefix.strip()), loose=False)
    at = line.rfind("```")
    loose = at > 0 and line.count("```") == 1 and line[at - 1] != "`"
    return _Mark(start, end, 0, "```" if loose else "", line[at + 3 :] if loose else "", listed=False, loose=loose)


def _undent(body: str, indent: int) -> str:
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", body, flags=re.MULTILINE) if indent else body
