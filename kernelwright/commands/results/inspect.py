"""`kernelwright inspect`: look at runs in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.problems.texts.libraries import LibraryMissing


def inspect(
    folder: Annotated[Path, typer.Argument(help="A run, or a folder that holds runs.")],
    export: Annotated[
        Path | None, typer.Option(help="Write the run as one HTML file, or as a picture (.svg), and end.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free one.")] = 8765,
) -> None:
    """Look at runs: tree, prompts, replies, logs and plots. Live on this machine, or as one offline file."""
    from kernelwright.agent.log.run_log import read_header

    found = [folder] if (folder / "header.json").exists() else sorted(p.parent for p in folder.glob("*/header.json"))
    if not found:
        read_header(folder)
        raise AssertionError("a folder without a header raised")
    if export is not None:
        _export(found, export)
        return
    try:
        from kernelwright.evals.inspector.live import serve
    except ImportError as error:
        lacking = LibraryMissing.of_extra("the live view", error.name, "inspect")
        raise LibraryMissing(f"{lacking}, or write a file with --export report.html") from None
    try:
        serve(found, port)
    except OSError as error:
        raise UserMistake(f"port {port} cannot be used ({error.strerror}); choose another --port, or 0") from error


def _export(found: list[Path], out: Path) -> None:
    from kernelwright.evals.inspector.export import export, export_picture

    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UserMistake(f"a file shows one run and there are {len(found)} ({names}); name one of them")
    if out.suffix not in (".html", ".htm", ".svg"):
        raise UserMistake(f"{out} would be a page or a picture under another name; give report.html or picture.svg")
    try:
        size = (export_picture if out.suffix == ".svg" else export)(found[0], out)
    except OSError as error:
        raise UserMistake(f"cannot write {out} ({error.strerror}); choose another file") from error
    print(f"{out}: {size / 1e6:.2g} MB; open it in a browser, it needs no network")
