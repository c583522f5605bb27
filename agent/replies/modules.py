"""A text as a Python module: whether it parses, what it defines, what it lacks, and where it stops being code."""

import ast
import builtins
import keyword
import re
import symtable
import threading
import warnings
from dataclasses import dataclass
from functools import cached_property

from kernelwright.problems.record.source import Binding, bindings, parse_module, top_level

LONGEST_SOURCE = 300_000
"""Characters. A longer text is taken for no candidate: parsing it would cost seconds and hundreds of megabytes."""


def _long(quote: str) -> str:
    return rf"{quote * 3}(?:[^{quote}\\]++|\\[\s\S]|{quote}(?!{quote * 2}))*+(?:(?P<end{ord(quote)}>{quote * 3})|\Z)"


def _short(quote: str) -> str:
    return rf"{quote}(?:[^{quote}\\\n]++|\\[\s\S])*+{quote}?"


# An opening quote always matches, whether anything closes it or not, so that no text is scanned twice.
_TOKEN = re.compile(
    rf"(?P<long>{_long(chr(34))}|{_long(chr(39))})"
    + rf"|(?P<skipped>#[^\n]*|{_short(chr(34))}|{_short(chr(39))})"
    + r"|(?P<opening>[(\[{])|(?P<closing>[)\]}])"
)


def leaves_string_open(source: str) -> bool:
    last = None
    for token in _TOKEN.finditer(source, 0, LONGEST_SOURCE):
        last = token
    return last is not None and last.lastgroup == "long" and not (last["end34"] or last["end39"])


def leaves_bracket_open(source: str) -> bool:
    """Whether more brackets open than close in `source`, those in strings and comments aside."""
    kinds = [token.lastgroup for token in _TOKEN.finditer(source, 0, LONGEST_SOURCE)]
    return kinds.count("opening") > kinds.count("closing")


PARSE_ALLOWANCE = 2_000_000
"""Characters that one extraction parses in all: some four seconds at worst, and far above any honest reply."""
FILENAME = "<kernelwright reply>"
"""Stands for a reply where Python names the file that it parses."""
MOST_CUTS = 8
"""How often a text is cut at its first error in search of a prefix that parses."""
_STATEMENT = re.compile(r"^[ \t]*(?:def|class|return|import|while|with)\b", re.MULTILINE)


class Module:
    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        return tuple(bindings(top_level(self.tree)))

    @cached_property
    def definitions(self) -> tuple[str, ...]:
        return tuple(binding.name for binding in self.bindings if binding.kind in ("class", "function"))

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that the module's own level gives a meaning."""
        return frozenset(binding.name for binding in self.bindings)

    @cached_property
    def imports(self) -> frozenset[str]:
        """The top-level packages that the module's own level imports."""
        names: list[str] = []
        for statement in top_level(self.tree):
            if isinstance(statement, ast.Import):
                names += [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and not statement.level:
                names.append(statement.module or "")
        return frozenset(name.partition(".")[0] for name in names)

    @cached_property
    def missing(self) -> frozenset[str]:
        """Names that are read as globals and bound nowhere; none where a star import could bind anything."""
        if "*" in self.binds:
            return frozenset()
        try:
            tables = [symtable.symtable(self.source, FILENAME, "exec")]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
        for table in tables:
            tables.extend(table.get_children())
        names = [symbol for table in tables for symbol in table.get_symbols() if symbol.is_global()]
        bound = {symbol.get_name() for symbol in names if symbol.is_assigned() or symbol.is_imported()}
        read = {symbol.get_name() for symbol in names if symbol.is_referenced()}
        return frozenset(read - bound - set(dir(builtins)) - {"__file__"})

    def defines(self, entry: str) -> bool:
        """Whether the top level has a class of that name, or assigns something to it.

        The scan, by the same bindings, takes a function or an import too. In a reply an import of the class is the use
        of an answer that stands elsewhere, and for a function the repair prompt asks for a class.
        """
        return any(binding.name == entry and binding.kind in ("class", "value") for binding in self.bindings)


@dataclass(frozen=True, slots=True)
class Broken:
    line: int
    """Counted from 1."""
    text: str
    message: str


class Parser:
    """Parses texts within one allowance of characters, each text once; it never raises."""

    def __init__(self) -> None:
        self._allowance = PARSE_ALLOWANCE
        self._read: dict[str, Module | Broken] = {}

    def read(self, source: str) -> Module | Broken:
        if source in self._read:
            return self._read[source]
        outcome: Module | Broken
        if len(source) > LONGEST_SOURCE:
            outcome = Broken(1, "", f"a source of {len(source)} characters is too long to be read")
        elif len(source) > self._allowance:
            outcome = Broken(1, "", "the reply holds too much code to be read in full")
        else:
            self._allowance -= len(source)
            outcome = _parse(source)
        self._read[source] = outcome
        return outcome

    def is_whole(self, source: str) -> bool:
        return isinstance(self.read(source), Module)

    def trimmed(self, text: str) -> tuple[Module, str] | Broken:
        """The text up to where prose begins, as a module, and the rest; or the error, where the rest is no prose."""
        kept, outcome = text, self.read(text)
        error: Broken | None = None
        for _ in range(MOST_CUTS):
            if isinstance(outcome, Module):
                break
            error = outcome
            kept = _before_line(kept, error.line)
            outcome = self.read(kept)
        if isinstance(outcome, Broken):
            return outcome
        if error is not None and not (kept.strip() and is_prose(text[len(kept) :])):
            return error
        module = self._without_last_words(outcome)
        return module, text[len(module.source) :]

    def _without_last_words(self, module: Module) -> Module:
        """The module without the bare words at its end that happen to parse, such as `Done` or `Note: fast`."""
        end = len(module.tree.body)
        while end and _is_word(module.tree.body[end - 1]):
            end -= 1
        if end in (0, len(module.tree.body)):
            return module
        line = module.tree.body[end].lineno
        shorter = self.read("".join(f"{one}\n" for one in module.source.split("\n", line - 1)[: line - 1]))
        return shorter if isinstance(shorter, Module) else module


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
    try:
        _keep_quiet()
        return Module(source, parse_module(source, filename=FILENAME))
    except SyntaxError as error:
        return _broken(source, error.lineno or 1, error.msg)
    except UnicodeEncodeError as error:
        return _broken(source, source.count("\n", 0, error.start) + 1, "a lone surrogate is no character")
    except (RecursionError, MemoryError):
        return _broken(source, 1, "the source is nested too deeply")
    except ValueError as error:
        return _broken(source, 1, str(error))


def breaks_off(source: str, error: Broken) -> bool:
    """Whether the text that does not parse ends in the middle of a statement, as one that was cut off does.

    A bracket that stays open shows that, unless statements follow: then its closing one was forgotten.
    """
    if leaves_string_open(source):
        return True
    text = source.rstrip()
    if is_prose(text.rpartition("\n")[2]):
        return False
    behind = text.split("\n", error.line)[error.line :]
    return not behind or (leaves_bracket_open(source) and _STATEMENT.search(behind[0]) is None)


def dedented(text: str) -> str:
    """The text less the indentation of its first line that is not blank."""
    margin = re.match(r"(?:[ \t]*\n)*+([ \t]*)", text)
    width = len(margin[1]) if margin else 0
    return re.sub(rf"^[ \t]{{1,{width}}}", "", text, flags=re.MULTILINE) if width else text


def _broken(source: str, line: int, message: str) -> Broken:
    lines = source.split("\n", line)
    text = lines[line - 1] if len(lines) >= line else ""
    return Broken(line, _printable(text.strip())[:120], _printable(message))


def _printable(text: str) -> str:
    return text[:1000].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _before_line(text: str, line: int) -> str:
    lines = text.split("\n", line)[:line]
    while lines and (not lines[-1].strip() or lines[-1][0] in " \t)]}"):
        lines.pop()
    return "".join(f"{one}\n" for one in lines[:-1])


def _is_word(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name)


def is_prose(text: str) -> bool:
    """Whether the first line of a text is no code: a sentence, a heading, a fence, or nothing."""
    line = text.strip().partition("\n")[0][:400]
    if not line or line.startswith(("```", "~~~", "**", "- ", "* ", "<", "---")):
        return True
    words = re.findall(r"[^\W\d_][\w'-]*", line)
    if line.startswith("#") or not words or keyword.iskeyword(words[0]):
        return False
    return bool(re.match(r"\W*[\w'\u2019-]+(?:[,;]? [\w'\u2019(\"`-]+){2}|[A-Z][\w ]*[:.!]?$|[\w ]+:$|\d+\. ", line))
