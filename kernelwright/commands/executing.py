"""Options about where judging runs, which several commands share, checked."""

from typing import TYPE_CHECKING

from kernelwright.endings import UserMistake

if TYPE_CHECKING:
    from evals.executors import Choice


def executor_choice(
    executor: str,
    address: str | None,
    devices: int | None,
    kind: str | None,
    builders: int | None = None,
) -> "Choice":
    """The executor that the options name; `UserMistake` for one that is none."""
    from evals.executors.choosing import NAMES, Choice

    if executor not in NAMES:
        raise UserMistake(f"no executor {executor!r}; there are: {', '.join(NAMES)}")
    if address is not None and executor != "ray":
        raise UserMistake(f"--address {address} names a Ray cluster; add --executor ray, or leave it out")
    if address is not None and devices is not None:
        raise UserMistake("--devices is for devices of this machine, and --address names a cluster; leave one out")
    return Choice.model_validate(
        {"executor": executor, "address": address, "devices": devices, "kind": kind, "builders": builders}
    )
