"""Logs on standard error, and text of children made safe to store and show. Standard library only.

Text of a child or a candidate may hold half of a surrogate pair, which no file accepts, or terminal control sequences,
which could blank a screen or print a false verdict. Escapes replace all invisible characters. Build logs and tracebacks
are cut to their relevant part.
"""

import logging
import os
import re
import sys

LONGEST_LINE = 400
TAIL = 80
"""Characters kept of the end of a long line: an exception often names the argument at fault last."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but newline and tab, and the second set of them
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # no width, or another direction or line
    "\ud800-\udfff]"  # half of a pair
)


def escaped(text: str) -> str:
    r"""Return the text with invisible characters as escapes, such as `\x1b`; newlines and tabs stay."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Return the escaped text on one line of at most `longest` characters, without the middle of a longer one."""
    line = " ".join(escaped(text).split())
    if len(line) <= longest:
        return line
    tail = min(TAIL, longest // 4)
    return f"{line[: longest - tail - 5]} ... {line[len(line) - tail :]}"


KEPT_CHARACTERS = 3000
CONTEXT_LINES = 3
_ERROR = re.compile(
    r"(?:^|[\s:])(?:fatal )?error\b\s*:?|undefined reference to|undefined symbol|multiple definition of"
    r"|\bld: cannot find|ptxas (?:fatal|error)",
    re.I,
)
_NOISE = re.compile(
    r"^(?:\[\d+/\d+\]|FAILED:|ninja: |(?:/\S*/)?(?:g\+\+|c\+\+|nvcc|clang\+\+) )|ninja_options|^\s*$"
    r"|^Using .* as PyTorch extensions root|^Emitting ninja build file|^Building extension module|^Loading extension"
)
_DEEP_PATH = re.compile(r"(?:/[^\s:/'\"]+){3,}/(?=[^\s:/'\"]+)")


def _first_error(lines: list[str]) -> int | None:
    errors = (i for i, line in enumerate(lines) if _ERROR.search(line) and "Error building extension" not in line)
    return next(errors, None)


def names_an_error(log: str) -> bool:
    return _first_error(_useful(log)) is not None


def build_reason(log: str) -> str:
    """Return the first error of a failed build on one line without its folder, or else the last line."""
    lines = _useful(log)
    first = _first_error(lines)
    return one_line(lines[-1 if first is None else first]) if lines else "the build failed without a message"


def trim_build_log(log: str) -> str:
    """Return the first error with the source lines after it, then further errors."""
    lines = _useful(log)
    first = _first_error(lines)
    if first is None:
        return _cut("\n".join(lines))
    end = first + 1 + CONTEXT_LINES
    rest = [line for line in lines[end:] if _ERROR.search(line) or line.lstrip().startswith(("|", "^"))]
    return _cut("\n".join(lines[first:end] + rest))


def trim_traceback(log: str) -> str:
    """Return the exception with the frames of the candidate's file, without those of torch and the worker."""
    kept: list[str] = []
    own = False
    for line in escaped(log).splitlines():
        frame = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if frame:
            own = frame[1].endswith("candidate.py")
            if own:
                kept.append(line.replace(frame[1], "candidate.py"))
        elif not line.startswith(" ") or own:
            kept.append(line)
    return _cut("\n".join(kept))


def _useful(log: str) -> list[str]:
    """Return the lines with content, each once, without deep folders."""
    seen: set[str] = set()
    kept = []
    for raw in escaped(log).splitlines():
        line = _DEEP_PATH.sub("", raw.rstrip())
        if not _NOISE.search(raw) and line not in seen:
            seen.add(line)
            kept.append(line)
    return kept


def _cut(text: str) -> str:
    if len(text) <= KEPT_CHARACTERS:
        return text
    half = KEPT_CHARACTERS // 2
    return f"{text[: 2 * half - 600]}\n[... {len(text) - KEPT_CHARACTERS} characters left out ...]\n{text[-600:]}"


OURS = "kernelwright"
"""The parent of all loggers here, silent without `show_logs` or a handler of the program."""
VARIABLE = "KERNELWRIGHT_LOG"
"""The environment variable with the log level of judging processes: INFO or DEBUG."""
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class StandardError(logging.Handler):
    """Lines on the current standard error, which a live table may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line, escaped, since it may quote a candidate."""
        print(escaped(self.format(record)), file=sys.stderr, flush=True)


def show_logs(level: str) -> None:
    """Print logs from this level on, here and in judging processes that are started later."""
    ours = logging.getLogger(OURS)
    if not any(isinstance(handler, StandardError) for handler in ours.handlers):
        handler = StandardError()
        handler.setFormatter(logging.Formatter(FORMAT))
        ours.addHandler(handler)
    ours.setLevel(level)
    os.environ[VARIABLE] = level


def show_logs_as_asked() -> None:
    """Take over the log level of the process that started this one. An unknown level is ignored."""
    level = os.environ.get(VARIABLE, "")
    if level in logging.getLevelNamesMapping():
        show_logs(level)
