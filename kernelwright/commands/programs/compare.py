"""`kernelwright compare`: a user's program with the kernels of a run, judged end to end."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.options.exit_codes import DONE, FELL_SHORT, UserMistake
from kernelwright.commands.options.files import writing
from kernelwright.commands.options.judging_options import compile_modes


def compare(
    script: Annotated[Path, typer.Argument(help="Your program, a Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the program is given, behind --.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the run whose kernels are put in.")] = None,
    compiled: Annotated[
        list[str] | None,
        typer.Option("--compile", help="Mode of torch.compile to compare with; may be repeated; none leaves it out."),
    ] = None,
    processes: Annotated[int, typer.Option(min=2, help="Processes of the program, one after the other.")] = 5,
    picture: Annotated[Path | None, typer.Option(help="SVG file to draw it into.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every sample, nothing else.")] = False,
) -> None:
    """Time your program with the run's kernels, against eager as shipped and torch.compile; compare what it gives.

    It runs here, as you would start it: this is no jail. Exit code 0 where the whole is right and faster than every
    baseline beyond doubt, 1 where it is not.
    """
    from kernelwright.programs.compare.child import Order
    from kernelwright.programs.compare.comparing import compare as compared
    from kernelwright.programs.compare.comparison import drawn, words

    if not script.is_file():
        raise UserMistake(f"there is no program {script}; name a Python file")
    if run is None:
        raise UserMistake("say which kernels: --run runs/TIME, a run over the program's capture")
    order = Order(
        script=str(script), arguments=tuple(arguments or ()), run=str(run), compiled=_modes(compiled), errors=True
    )
    found = compared(order, processes, lambda text: print(f"kernelwright: {text}", file=sys.stderr))
    if picture is not None:
        with writing(picture):
            picture.write_text(drawn(found), encoding="utf-8")
    clock = {"timing_clock": found.whole.timing_clock}
    print(json.dumps(found.model_dump(mode="json") | clock) if as_json else words(found))
    raise typer.Exit(DONE if found.is_faster else FELL_SHORT)


def _modes(given: list[str] | None) -> tuple[str, ...]:
    return () if given == ["none"] else compile_modes(given or ["default"])
