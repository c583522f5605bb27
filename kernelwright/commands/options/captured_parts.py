"""Captures among the problems that are named: each stands for the parts of it that are worth a kernel."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.commands.options.exit_codes import UserMistake


def with_parts(named: Sequence[str], top: int | None, attempts: int) -> tuple[list[str], dict[str, int]]:
    """The problems with each capture's chosen parts in its place, and how many attempts each of these has.

    They share what as many problems would have, by what could be had of the program's time.
    """
    from kernelwright.programs.record import is_capture
    from kernelwright.programs.split import attempts_for, chosen_problems

    if top is not None and not any(map(is_capture, named)):
        raise UserMistake("--top chooses among the parts of a capture, and none is named; name its folder")
    names: list[str] = []
    shares: dict[str, int] = {}
    for one in named:
        if not is_capture(one):
            names.append(one)
            continue
        weights = chosen_problems(Path(one), top)
        if not weights:
            raise UserMistake(f"no part of {one} is worth a kernel by `kernelwright split`; capture a slower program")
        names += weights
        counts = attempts_for(weights.values(), attempts)
        shares |= {Path(path).name: count for path, count in zip(weights, counts, strict=True)}
    return names, shares


def keep_captures(named: Sequence[str], run: Path) -> None:
    """Copy the capture of a run with its choice into the run's folder, so that kernels find their places.

    Of several captures none is: their parts could not be told apart.
    """
    from kernelwright.programs.record import is_capture, read_capture, read_split, write_record

    captures = [Path(one) for one in named if is_capture(one)]
    if len(captures) == 1:
        write_record(run, read_capture(captures[0]))
        write_record(run, read_split(captures[0]))
