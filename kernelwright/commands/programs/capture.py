"""`kernelwright capture`: run a program of the user's and write down where its time goes."""

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.commands.programs.split import show_split


def capture(
    script: Annotated[Path, typer.Argument(help="A Python program that calls its model; it runs in this process.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments, behind --.")] = None,
    out: Annotated[Path | None, typer.Option(help="New folder; default: captures/TIME.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Calls of the model that are profiled; later ones just run.")] = 4,
    top: Annotated[int, typer.Option(min=1, help="Parts to choose at most.")] = 5,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Keep weights and inputs too, as values.safetensors.")
    ] = False,
) -> None:
    """Run a script under torch's profiler, cut its slow parts out as problems and choose those worth a kernel.

    It runs as it is, with your rights: it is your program. Nothing is sent anywhere.
    """
    from kernelwright.programs.capture.capturing import Wishes, capturing_script, new_folder

    if not script.is_file():
        raise UserMistake(f"there is no script {script}; check the path")
    words = " ".join([script.name, *(arguments or [])])
    wishes = Wishes(new_folder(out), words, steps, with_values, _tell)
    with capturing_script(wishes):
        _run(script, arguments or [])
    if with_values:
        size = (wishes.out / "values.safetensors").stat().st_size
        _tell(f"weights and inputs take {size / 2**20:.3g} MiB in {wishes.out / 'values.safetensors'}")
    show_split(wishes.out, top)


def _tell(text: str) -> None:
    print(f"kernelwright: {text}", file=sys.stderr, flush=True)


def _run(script: Path, arguments: list[str]) -> None:
    """As `python script arguments` would. `UserMistake` where it fails, behind its own traceback."""
    with _started_as(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise UserMistake(f"{script} ended with exit code {end.code}; let it run through") from None
        except Exception as error:
            traceback.print_exc()
            raise UserMistake(f"{script} failed with {type(error).__name__}; mend it first") from None


@contextmanager
def _started_as(script: Path, arguments: list[str]) -> Iterator[None]:
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
