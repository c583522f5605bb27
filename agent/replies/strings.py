"""Where the strings, comments and brackets of a Python text begin and end, without parsing it: it may be cut off."""

import re

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
    """Whether `source` ends inside a triple-quoted string."""
    last = None
    for token in _TOKEN.finditer(source, 0, LONGEST_SOURCE):
        last = token
    return last is not None and last.lastgroup == "long" and not (last["end34"] or last["end39"])


def leaves_bracket_open(source: str) -> bool:
    """Whether more brackets open than close in `source`, those in strings and comments aside."""
    kinds = [token.lastgroup for token in _TOKEN.finditer(source, 0, LONGEST_SOURCE)]
    return kinds.count("opening") > kinds.count("closing")
