"""Options that several commands share, checked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from kernelwright.commands.options.endings import UserMistake

if TYPE_CHECKING:
    from kernelwright.sandbox.verdict.settings import CompileMode

JAILS: dict[str, Literal["auto", "strict", "off"]] = {"auto": "auto", "strict": "strict", "off": "off"}


def jail_policy(name: str) -> Literal["auto", "strict", "off"]:
    """The policy of that name; `UserMistake` for any other."""
    if name not in JAILS:
        raise UserMistake(f"no jail policy {name!r}; there are: {', '.join(JAILS)}")
    return JAILS[name]


def compile_modes(names: Sequence[str]) -> "tuple[CompileMode, ...]":
    """Modes of torch.compile, checked; `UserMistake` for a name that is none."""
    from kernelwright.sandbox.verdict.settings import CompileMode

    modes: dict[str, CompileMode] = {mode: mode for mode in get_args(CompileMode)}
    for name in names:
        if name not in modes:
            raise UserMistake(f"no torch.compile mode {name!r}; there are: {', '.join(modes)}")
    return tuple(modes[name] for name in names)
