"""Records of older releases that differ by more than a field's name; a field's alias stays with its field."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelwright.problems.problem import Record

READABLE = (1, 2)  # formats of a run's log. 1: the texts of prompts are complete rather than by section


class SectionSpan(Record):
    """A section of a prompt in format 1: offsets in the complete text, which that log holds."""

    name: str
    stable: bool
    start: int
    end: int


def is_complete_text(sections: Iterable[Record]) -> bool:
    """Tell whether the log holds a prompt's complete text, as in format 1; templates have changed since."""
    return any(isinstance(one, SectionSpan) for one in sections)


def provider_options(raw: Any, fields: Iterable[str]) -> Any:
    """Keep the options of one kind, where all kinds shared one record and `server` was a record inside it."""
    if isinstance(raw, dict) and isinstance(server := raw.get("server"), dict):
        return {name: value for name, value in (server | raw).items() if name in fields}
    return raw


def is_named_by_digest(folder: Path, digest: str, ends: Iterable[str]) -> bool:
    """Tell whether a folder of tasks has files of the complete digest, which now begin with the problem's name."""
    return any((folder / f"{digest}{end}").is_file() for end in ends)
