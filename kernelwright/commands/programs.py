"""`kernelwright capture`, `split` and `compare`: what is slow in a user's program, and what became of it."""

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.options import JailOption, MemoryOption, TopOption, compile_modes
from kernelwright.terminal import DONE, FELL_SHORT, UserMistake, json_option, note, table_console, writing

if TYPE_CHECKING:
    from kernelwright.sandbox.verdict.settings import JudgeSettings


def split(
    folder: Annotated[Path, typer.Argument(help="Folder of the capture.")],
    top: TopOption = 5,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure what torch.compile makes of them; up to a minute for each.")
    ] = False,
    memory: MemoryOption = None,
    jail: JailOption = "auto",
    as_json: Annotated[bool, json_option("The choice as one JSON object, nothing else.")] = False,
) -> None:
    """Choose the parts where most could be had, none inside another; a table, split.json and split.svg."""
    from kernelwright.programs.record import read_capture, read_split

    captured = read_capture(folder)
    settings = None
    if compiled:
        from kernelwright.options import JudgingOptions
        from kernelwright.sandbox.jail.zygote import prepare_judge

        threads = None if captured.is_gpu else captured.threads
        prepare_judge(threads)
        asked = JudgingOptions(memory=memory, threads=threads, jail=jail)
        settings = asked.settings("cuda" if captured.is_gpu else "cpu")
    show_split(folder, top, settings, quiet=as_json)
    if as_json:
        print(read_split(folder).model_dump_json())


def show_split(folder: Path, top: int, compiling: "JudgeSettings | None" = None, quiet: bool = False) -> None:
    """Choose, and print the table with all that a reader has to know."""
    from kernelwright.programs.record import read_capture
    from kernelwright.programs.split import PICTURE, split_capture, split_table, uncut_lines

    captured = read_capture(folder)
    console = table_console(highlight=False)
    choice = split_capture(folder, top, compiling, note)
    if quiet:
        return
    console.print(split_table(captured, choice))
    for line in (*uncut_lines(captured), *captured.notes):
        console.print(line, soft_wrap=True)
    console.print(f"problems: {folder}/problems, picture: {folder / PICTURE}", soft_wrap=True)
    console.print(f"next: kernelwright run {folder} --top {top} --model MODEL", soft_wrap=True)


def capture(
    script: Annotated[Path, typer.Argument(help="A Python program that calls its model; it runs in this process.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments, behind --.")] = None,
    out: Annotated[Path | None, typer.Option(help="New folder; default: captures/TIME.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Calls of the model that are profiled; later ones just run.")] = 4,
    top: TopOption = 5,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Keep weights and inputs too, as values.safetensors.")
    ] = False,
) -> None:
    """Run a script under torch's profiler, cut its slow parts out as problems and choose those worth a kernel.

    It runs as it is, with your rights: it is your program. Nothing is sent anywhere.
    """
    from kernelwright.programs.capture import Wishes, capturing_script, new_folder

    if not script.is_file():
        raise UserMistake(f"there is no script {script}; check the path")
    words = " ".join([script.name, *(arguments or [])])
    wishes = Wishes(new_folder(out), words, steps, with_values, note)
    with capturing_script(wishes):
        _run(script, arguments or [])
    if with_values:
        size = (wishes.out / "values.safetensors").stat().st_size
        note(f"weights and inputs take {size / 2**20:.3g} MiB in {wishes.out / 'values.safetensors'}")
    show_split(wishes.out, top)


def _run(script: Path, arguments: list[str]) -> None:
    """Run the script as `python script arguments` would. `UserMistake` where it fails, behind its own traceback."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise UserMistake(f"{script} ended with exit code {end.code}; let it run through") from None
    except Exception as error:
        traceback.print_exc()
        raise UserMistake(f"{script} failed with {type(error).__name__}; mend it first") from None
    finally:
        sys.argv, sys.path[:] = before


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
    as_json: Annotated[bool, json_option("One JSON object with every sample, nothing else.")] = False,
) -> None:
    """Time your program with the run's kernels, against eager as shipped and torch.compile; compare its outputs.

    It runs here as you would start it, without a jail. Exit code 0 where the program is correct and faster than every
    baseline beyond doubt, else 1.
    """
    from kernelwright.programs.apply import kept_kernels
    from kernelwright.programs.compare import Order, drawn, words
    from kernelwright.programs.compare import compare as compared

    if not script.is_file():
        raise UserMistake(f"there is no program {script}; name a Python file")
    if run is None:
        raise UserMistake("say which kernels: --run runs/TIME, a run over the program's capture")
    modes = () if compiled == ["none"] else compile_modes(compiled or ["default"])
    kept_kernels(run)  # an unsuitable run is refused before the program starts
    order = Order(script=str(script), arguments=tuple(arguments or ()), run=str(run), compiled=modes, errors=True)
    found = compared(order, processes, note)
    if picture is not None:
        with writing(picture):
            picture.write_text(drawn(found), encoding="utf-8")
    print(found.model_dump_json() if as_json else words(found))
    raise typer.Exit(DONE if found.is_faster else FELL_SHORT)
