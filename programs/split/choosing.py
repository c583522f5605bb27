"""The choice of a captured program's parts, made and kept in its folder."""

from collections.abc import Callable
from pathlib import Path

from kernelwright.programs.record.capture_folder import (
    SPLIT,
    CapturedProgram,
    Split,
    read_capture,
    read_split,
    write_record,
)
from kernelwright.programs.record.parts import Part
from kernelwright.programs.split.picture import split_picture
from kernelwright.programs.split.ranking import choose
from kernelwright.sandbox.machine.atomic import write_atomically
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.peaks import Peaks
from kernelwright.sandbox.verdict.settings import Settings

PICTURE = "split.svg"
TOP = 5


def split_capture(
    folder: Path, top: int = TOP, compiling: Settings | None = None, tell: Callable[[str], None] = lambda text: None
) -> Split:
    """Choose at most `top` parts, and write `split.json` and `split.svg`; with settings torch.compile is measured."""
    captured = read_capture(folder)

    def speedup(part: Part) -> float | None:
        from kernelwright.programs.split.compiling import speedup_of_compile

        assert compiling is not None, "asked for only where it is given"
        tell(f"measuring torch.compile on {part.id}")
        return speedup_of_compile(folder, part, compiling)

    split = choose(captured, top, _peaks(captured, tell), speedup if compiling else None)
    write_record(folder, split)
    write_atomically(folder / PICTURE, split_picture(captured, split))
    return split


def _peaks(captured: CapturedProgram, tell: Callable[[str], None]) -> Peaks | None:
    """Of the device here, which is taken to be that of the capture; None where they can not be had."""
    from kernelwright.sandbox.floor.local_peaks import peaks_here

    try:
        return peaks_here(captured.is_gpu, captured.threads)
    except MachineError as error:
        tell(f"no part has a floor: {error}")
        return None


def chosen_problems(folder: Path, top: int | None = None) -> dict[str, float]:
    """By the path of each chosen problem, its weight: the share of a budget that it deserves.

    Chooses afresh where no choice was made, or fewer parts than are wanted.
    """
    known = read_split(folder) if (folder / SPLIT).exists() else None
    if known is None or (top or TOP) > len(known.chosen):
        known = split_capture(folder, top or TOP) if known is None or not known.compiled else known
    weights = known.weights(top)
    captured = read_capture(folder)
    return {str(folder / captured.part(name).problem): weight for name, weight in weights.items()}
