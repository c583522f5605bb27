"""Files of JSON lines, cut at newlines alone: a JSON text may hold what `str.splitlines` takes for a line's end."""


def json_lines(text: str) -> list[str]:
    """The lines of a file that was read with newlines as `\\n`, the empty ones too, so that they can be counted."""
    return text.removesuffix("\n").split("\n") if text else []
