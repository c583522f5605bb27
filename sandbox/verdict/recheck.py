"""A recorded verdict computed again from its own raw samples: does it say what they say? Pure."""

import math
from typing import Any

from pydantic import ValidationError

from kernelwright.sandbox.verdict.report import USUAL, derived
from kernelwright.sandbox.verdict.verdicts import Measurement

RELATIVE = 1e-9
"""What another machine's last digits may differ by."""

LATER = frozenset({"against", "speedups", *USUAL})
"""Keys that records of earlier versions lack."""


class RecordError(ValueError):
    """A record that can not be rechecked; the text is one sentence with the remedy."""


def recheck(record: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By key, what the record says and what its samples say, where the two differ.

    `record` is a report of `judge --json`. Raises `RecordError` where it holds no samples: a failed verdict has
    nothing to compute.
    """
    if record.get("outcome") != "passed":
        raise RecordError(
            f"the record's outcome is {record.get('outcome')!r}: only a passed verdict rests on samples; "
            "judge the candidate again to see whether it still fails"
        )
    found = derived(measurement_of(record))
    wanted = {key: value for key, value in found.items() if key in record or key not in LATER}
    return {key: (record.get(key), value) for key, value in wanted.items() if not _equal(record.get(key), value)}


def measurement_of(record: dict[str, Any]) -> Measurement:
    """What a passed record was made from. Raises `RecordError` where it holds no samples."""
    try:
        return Measurement(pairings=record["samples"], **(record.get("measurement") or {"threads": 1}))
    except (KeyError, TypeError, ValidationError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{error}"
        raise RecordError(f"the record's samples can not be read ({problem}); use a record of `judge --json`") from None


def _equal(said: Any, found: Any) -> bool:
    if isinstance(found, dict):
        return isinstance(said, dict) and said.keys() == found.keys() and all(_equal(said[k], found[k]) for k in found)
    if isinstance(found, float):
        return isinstance(said, int | float) and math.isclose(said, found, rel_tol=RELATIVE)
    return bool(said == found)
