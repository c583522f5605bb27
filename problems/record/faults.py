"""What pydantic found wrong first: where, and in which words."""

from typing import NamedTuple

from pydantic import ValidationError


class Fault(NamedTuple):
    """One fault."""

    key: str
    """Its place, as `table.entry.field`; empty for the whole."""
    said: str


def first_fault(error: ValidationError) -> Fault:
    """The first of the faults."""
    found = error.errors(include_url=False)[0]
    return Fault(".".join(str(part) for part in found["loc"]), found["msg"])
