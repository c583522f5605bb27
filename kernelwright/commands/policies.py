"""Options that several commands share, checked."""

from typing import Literal

from kernelwright.endings import UserMistake

JAILS: dict[str, Literal["auto", "strict", "off"]] = {"auto": "auto", "strict": "strict", "off": "off"}


def jail_policy(name: str) -> Literal["auto", "strict", "off"]:
    """The policy of that name; `UserMistake` for any other."""
    if name not in JAILS:
        raise UserMistake(f"no jail policy {name!r}; there are: {', '.join(JAILS)}")
    return JAILS[name]
