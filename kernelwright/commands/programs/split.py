"""`kernelwright split`: which parts of a captured program are worth a kernel."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.shared_options import JailOption, MemoryOption
from kernelwright.commands.options.terminal import table_console

if TYPE_CHECKING:
    from kernelwright.sandbox.verdict.settings import Settings


def split(
    folder: Annotated[Path, typer.Argument(help="Folder of the capture.")],
    top: Annotated[int, typer.Option(min=1, help="Parts to choose at most.")] = 5,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure what torch.compile makes of them; up to a minute for each.")
    ] = False,
    memory: MemoryOption = None,
    jail: JailOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The choice as one JSON object, nothing else.")] = False,
) -> None:
    """Choose the parts where most could be had, none inside another; a table, split.json and split.svg."""
    from kernelwright.programs.record import read_capture, read_split

    captured = read_capture(folder)
    settings = None
    if compiled:
        from kernelwright.commands.options.judging_options import JudgingOptions
        from kernelwright.sandbox.jail.own_process import become_a_judge

        threads = None if captured.is_gpu else captured.threads
        become_a_judge(threads)
        settings = JudgingOptions("cuda" if captured.is_gpu else "cpu", memory, threads, jail=jail).settings()
    show_split(folder, top, settings, quiet=as_json)
    if as_json:
        print(read_split(folder).model_dump_json())


def show_split(folder: Path, top: int, compiling: "Settings | None" = None, quiet: bool = False) -> None:
    """Choose, and print the table with all that a reader has to know."""
    from kernelwright.programs.record import read_capture
    from kernelwright.programs.split import PICTURE, split_capture, split_table, uncut_lines

    captured = read_capture(folder)
    console = table_console(highlight=False)
    choice = split_capture(
        folder, top, compiling, lambda text: print(f"kernelwright: {text}", file=sys.stderr, flush=True)
    )
    if quiet:
        return
    console.print(split_table(captured, choice))
    for line in (*uncut_lines(captured), *captured.notes):
        console.print(line, soft_wrap=True)
    console.print(f"problems: {folder}/problems, picture: {folder / PICTURE}", soft_wrap=True)
    console.print(f"next: kernelwright run {folder} --top {top} --model MODEL", soft_wrap=True)
