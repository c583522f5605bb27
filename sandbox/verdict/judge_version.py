"""Versions that say which verdicts, stored facts and processes may be used together."""

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, Field

JUDGE_VERSION = 8
"""Raise it when a verdict, a time or an interval may change. Moves and renames keep it.

`tests/contract` holds the outcomes and figures of each version and fails where one changes while the number stays.
"""
WIRE_VERSION = 1
"""Raise it when a client, server or worker of the version before would misread a message."""

JUDGE = "judge_version"
"""The key of the judge version in the versions of a run or a verdict, and in what a service reports."""
OLD_JUDGE = "harness"
"""Its key in records of older releases. The value there is a digest of the judge's sources."""
WIRE = "wire_version"

JUDGE_FIELD = Field(validation_alias=AliasChoices(JUDGE, OLD_JUDGE))
"""For a record's judge version as text. Records of older releases are read with the digest that they have."""


def judged_by(versions: Mapping[str, str], default: str | None = None) -> str | None:
    """The judge version in a record's versions. Records of older releases hold a digest of 16 hex digits."""
    return versions.get(JUDGE, versions.get(OLD_JUDGE, default))


def own_versions() -> dict[str, int]:
    """This process's versions, as peers compare them by `other_version`."""
    return {JUDGE: JUDGE_VERSION, WIRE: WIRE_VERSION}


def other_version(peer: Mapping[str, Any]) -> str | None:
    """Say how a peer (`judge_version` and `wire_version`) differs from this process; None where it does not."""
    for name, own in own_versions().items():
        found = peer.get(name)
        if found != own:
            return f"{name} {'unknown' if found is None else found}, this process has {own}"
    return None
