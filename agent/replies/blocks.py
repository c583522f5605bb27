"""The places of a text where a program may stand, fenced blocks and raw code, and each of them as a Python module."""

import ast
import keyword
import re
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from kernelwright.problems.source import Binding, bindings, parse_module, top_level

LONGEST_SOURCE = 300_000
"""Characters. A longer text is taken for no candidate: parsing it would cost seconds and hundreds of megabytes."""
MOST_FENCES = 16
"""Fences behind the first bare one among which the end of a block is looked for."""
_CODE_LINE = re.compile(r"^(?:import [A-Za-z_]|from [\w.]+ import |class \w+[ \t]*[(:]|def \w+\(|@\w)", re.MULTILINE)
"""A line that a program may begin with."""
_FENCE = re.compile(r"^(?P<margin>[ \t]*+(?:(?:[-*+]|\d+[.)])[ \t]++)*+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^`\n]*)$", re.M)
"""CommonMark's fence, also behind list markers and however far in."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a text that may be a program."""

    text: str
    origin: str
    """Where it stood, as a reader would say it: `fenced block`."""
    start: int
    end: int
    """Offsets of the block with its fences in the text that was read."""
    closed: bool
    """Whether a fence shows that the model meant to stop here."""

    @property
    def is_python(self) -> bool:
        """Whether it has a line of Python."""
        return _CODE_LINE.search(self.text) is not None


def fenced_blocks(text: str, parser: "Parser") -> list[Block]:
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
            behind = fences[end].end() if closed else _start(fences, end)
            body = _body(fences, head, end)
            blocks.append(Block(body, "fenced block", fences[head].start(), behind, closed))
        at = stop + 1
    return blocks


def _closing(fences: list[re.Match[str]], head: int, parser: "Parser") -> int:
    """Find the fence that ends the block: the first bare one, or the first outside the strings of a program."""
    first = next((at for at in range(head + 1, len(fences)) if _closes(fences[at], fences[head])), len(fences))
    if first == len(fences) or not leaves_string_open(_body(fences, head, first)):
        return first
    for later in range(first + 1, min(len(fences), first + MOST_FENCES)):
        infos = [fence["info"].strip() for fence in fences[head + 1 : later]]
        looks_nested = bool(infos[0]) or not any(infos)
        if looks_nested and _closes(fences[later], fences[head]) and parser.is_whole(_body(fences, head, later)):
            return later
    return first


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    """Tell whether a fence is bare, of the same character, at least as long, and hardly further in."""
    is_level = len(fence["margin"]) <= len(opening["margin"]) + 3
    return is_level and not fence["info"].strip() and fence["run"].startswith(opening["run"])


def _start(fences: list[re.Match[str]], index: int) -> int:
    return fences[index].start() if index < len(fences) else len(fences[0].string)


def _body(fences: list[re.Match[str]], at: int, stop: int) -> str:
    """Cut out the lines between two fences, less the indentation of the first that is not blank."""
    text = fences[at].string[fences[at].end() + 1 : _start(fences, stop)]
    margin = re.match(r"(?:[ \t]*+\n)*+([ \t]*+)", text)
    width = len(margin[1]) if margin else 0
    return re.sub(rf"^[ \t]{{1,{width}}}", "", text, flags=re.MULTILINE) if width else text


def raw_block(text: str, at: int, fenced: Sequence[Block]) -> Block | None:
    """Find the first line of code at or behind `at` outside the closed blocks, with all up to the next of these."""
    closed = [block for block in fenced if block.closed]
    for begin, end in zip([0, *(one.end for one in closed)], [*(one.start for one in closed), len(text)], strict=True):
        if match := _CODE_LINE.search(text, max(at, begin), end):
            code = text[match.start() : min(end, match.start() + LONGEST_SOURCE + 1)]
            return Block(code, "raw code", match.start(), end, closed=False)
    return None


class Module:
    """A text that parses, with its syntax tree."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """What its own level gives a meaning."""
        return tuple(bindings(top_level(self.tree)))

    @property
    def imports_torch(self) -> bool:
        """Whether it can stand by itself as far as its imports show."""
        return bool(re.search(r"^[ \t]*(?:import|from)[ \t][^#\n]*\btorch\b", self.source, re.MULTILINE))

    def defines(self, entry: str) -> bool:
        """Tell whether the top level has a class of that name, or assigns something to it.

        The scan takes an import and a function too. In a reply an import is the use of what stands elsewhere.
        """
        return any(binding.name == entry and binding.kind in ("class", "value") for binding in self.bindings)


class Broken(NamedTuple):
    """Why a text does not parse, and on which line, counted from 1."""

    line: int
    text: str
    message: str


PARSE_ALLOWANCE = 2_000_000
"""Characters that one extraction parses in all: some four seconds at worst, and far above any honest reply."""
MOST_CUTS = 8
"""How often a text is cut at its first error in search of a prefix that parses."""
FILENAME = "<kernelwright reply>"
"""Stands for a reply where Python names the file that it parses."""


class Parser:
    """Reader of texts within one allowance of characters, each text once; it never raises."""

    def __init__(self) -> None:
        self._allowance = PARSE_ALLOWANCE
        self._read: dict[str, Module | Broken] = {}

    def read(self, source: str) -> Module | Broken:
        """Parse a text."""
        if source not in self._read:
            if len(source) > min(self._allowance, LONGEST_SOURCE):
                self._read[source] = Broken(1, "", f"{len(source)} characters of code are too long to be read")
            else:
                self._allowance -= len(source)
                self._read[source] = _parse(source)
        return self._read[source]

    def is_whole(self, source: str) -> bool:
        """Tell whether a text parses."""
        return isinstance(self.read(source), Module)

    def trimmed(self, text: str) -> Module | Broken:
        """Parse a text up to where prose begins; what is left out must be prose."""
        kept, outcome = text, self.read(text)
        for _ in range(MOST_CUTS):
            if isinstance(outcome, Module):
                break
            error, kept = outcome, _before_line(kept, outcome.line)
            outcome = self.read(kept)
        if kept == text or isinstance(outcome, Broken):
            return outcome
        return outcome if kept.strip() and is_prose(text[len(kept) :]) else error


_FILTERING = threading.Lock()


def _keep_quiet() -> None:
    """Ignore what Python warns of in parsed replies, under their own filename and nowhere else.

    The filter stays, since `catch_warnings` changes what all threads see and two of them can restore each other's.
    """
    ours = ("ignore", None, Warning, re.compile(re.escape(FILENAME)), 0)
    with _FILTERING:  # it is taken out before it is put in front, which another thread would see
        if not warnings.filters or warnings.filters[0] != ours:
            warnings.filterwarnings("ignore", module=re.escape(FILENAME))


def _parse(source: str) -> Module | Broken:
    line = 1
    try:
        _keep_quiet()
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


def is_prose(text: str) -> bool:
    """Tell whether the first line of a text is no code: a sentence, a heading, a fence, or nothing."""
    line = text.strip().partition("\n")[0][:400]
    if not line or line.startswith(("```", "~~~", "**", "- ", "* ", "<", "---")):
        return True
    words = re.findall(r"[^\W\d_][\w'-]*", line)
    if line.startswith("#") or not words or keyword.iskeyword(words[0]):
        return False
    return bool(re.match(r"\W*[\w'\u2019-]+(?:[,;]? [\w'\u2019(\"`-]+){2}|[A-Z][\w ]*[:.!]?$|[\w ]+:$|\d+\. ", line))


def leaves_string_open(source: str) -> bool:
    """Tell whether a text seems to end within a string of three quotes."""
    return any(source.count(quotes) % 2 for quotes in ('"""', "'''"))


def breaks_off(source: str, error: Broken) -> bool:
    """Tell whether a text that does not parse ends in the middle of a statement, as one that was cut off does.

    A bracket that stays open shows that, unless statements follow: then its closing one was forgotten.
    """
    lines = source.rstrip().split("\n")
    is_open = sum(map(source.count, "([{")) > sum(map(source.count, ")]}"))
    goes_on = re.search(
        r"^[ \t]*(?:def|class|return|import|while|with)\b", "\n".join(lines[error.line :]), re.MULTILINE
    )
    is_cut = error.line >= len(lines) or (is_open and not goes_on)
    return leaves_string_open(source) or (is_cut and not is_prose(lines[-1]))
