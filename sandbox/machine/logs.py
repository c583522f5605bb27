"""Logs on standard error where somebody asks for them, and text of others made fit to be stored and shown.

Each room of the sandbox logs under its own name. Text that a child or a candidate wrote may hold half of a surrogate
pair, which no file can take, or the control sequences of a terminal, which could blank a screen or write a verdict of
their own. What can not be seen is replaced by an escape that can. The standard library alone.
"""

import logging
import os
import re
import sys

LONGEST_LINE = 400
TAIL = 80
"""What is kept of the end of a line that is too long: an exception often names the argument at fault last."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but newline and tab, and the second set of them
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # no width, or another direction or line
    "\ud800-\udfff]"  # half of a pair
)


def escaped(text: str) -> str:
    r"""The text with what can not be seen as escapes, such as `\x1b`; newlines and tabs stay."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """The same on one line, of at most `longest` characters; of a longer one the middle is left out."""
    line = " ".join(escaped(text).split())
    if len(line) <= longest:
        return line
    tail = min(TAIL, longest // 4)
    return f"{line[: longest - tail - 5]} ... {line[len(line) - tail :]}"


OURS = "kernelwright"
"""The logger above all of ours; without `tell_logs` it is silent, but for what a program has set up by itself."""
VARIABLE = "KERNELWRIGHT_LOG"
"""The environment variable that says a level to the processes of ours that judge: INFO or DEBUG."""
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class StandardError(logging.Handler):
    """Lines on what is standard error at that time: a live table takes its place, and is not torn by them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line. It may quote what a candidate has said, so it is made fit for a terminal."""
        print(escaped(self.format(record)), file=sys.stderr, flush=True)


def tell_logs(level: str) -> None:
    """Tell what is logged at this level and above, here and in the processes of ours that are started from now on."""
    ours = logging.getLogger(OURS)
    if not any(isinstance(handler, StandardError) for handler in ours.handlers):
        handler = StandardError()
        handler.setFormatter(logging.Formatter(FORMAT))
        ours.addHandler(handler)
    ours.setLevel(level)
    os.environ[VARIABLE] = level


def tell_logs_as_asked() -> None:
    """In a process that another one of ours has started: tell what that one tells. A level that is none is ignored."""
    level = os.environ.get(VARIABLE, "")
    if level in logging.getLevelNamesMapping():
        tell_logs(level)
