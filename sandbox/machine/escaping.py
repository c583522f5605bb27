"""Text that a child or a candidate wrote, made fit to be stored and shown. Pure; the standard library alone.

Such text may hold half of a surrogate pair, which no file can take, or the control sequences of a terminal, which
could blank a screen or write a verdict of their own. What can not be seen is replaced by an escape that can.
"""

import re

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
