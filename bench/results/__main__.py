"""`python -m bench results COMMAND`: see each; `make results` is `draw`."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.terminal import FELL_SHORT, with_exit_codes

ROOT = Path(__file__).parents[2]
UNDER_WAY = "under-way"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[Path, typer.Option("--folder", help="The folder of results.")]
Tree = Annotated[Path, typer.Argument(help="Checkout of KernelBench, or a folder of its levels.")]


@app.command()
@with_exit_codes
def select(
    tree: Tree,
    out: Annotated[Path, typer.Argument(help="New folder for the chosen files alone.")],
    model: Annotated[str, typer.Option(help="Name and date of the model that answers, for the record.")],
    runs: Annotated[Path, typer.Option(help="Where the runs are to lie.")] = Path("runs/results"),
    folder: Folder = ROOT / "results",
) -> None:
    """Lay the chosen problems into a small tree of their own, and print the run of each dtype."""
    from bench.results.keeping import commands, copy_chosen, read_selection

    selection = read_selection(folder)
    copy_chosen(selection, tree, out)
    for line in commands(selection, out, runs, model):
        print(line)


@app.command()
@with_exit_codes
def keep(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs over the selection.")],
    folder: Folder = ROOT / "results",
    replace: Annotated[bool, typer.Option("--replace", help="Also what another run came to for a problem.")] = False,
) -> None:
    """Take runs over: records, kept kernels and index. Exit code 1 while some problems are not at their end."""
    from bench.results.keeping import keep as keep_runs

    index = keep_runs(folder, runs, replace)
    print(
        f"{len(index.rows)} problems of {len(index.runs)} runs, {sum(bool(row.kernel) for row in index.rows)} kernels"
    )
    waiting = [f"{row.address} in {row.dtype}" for row in index.rows if row.stopped is None]
    if waiting:
        print(f"not at their end yet, answer or resume: {', '.join(waiting)}")
        raise typer.Exit(FELL_SHORT)


@app.command()
@with_exit_codes
def pack(
    tree: Tree,
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs over the selection that wait for answers.")],
    folder: Folder = ROOT / "results",
) -> None:
    """Write each run as one small file without the benchmark's texts: `under-way/NAME.json.gz` in the folder."""
    from bench.results.keeping import pack as pack_run
    from bench.results.keeping import read_selection

    selection = read_selection(folder)
    for run in runs:
        out = folder / UNDER_WAY / f"{run.name}.json.gz"
        print(f"{out}: {pack_run(run, tree, selection, out)} bytes")


@app.command()
@with_exit_codes
def unpack(
    tree: Tree,
    out: Annotated[Path, typer.Argument(help="Folder in which each run gets a new one of its name.")],
    folder: Folder = ROOT / "results",
    anew: Annotated[bool, typer.Option("--anew", help="Ask unanswered requests anew, by the present prompts.")] = False,
) -> None:
    """Lay out the runs under way again, from the files that `pack` wrote; then go on with `kernelwright resume`."""
    from bench.results.keeping import read_selection
    from bench.results.keeping import unpack as unpack_run

    selection = read_selection(folder)
    for parcel in sorted((folder / UNDER_WAY).glob("*.json.gz")):
        run = out / parcel.name.partition(".")[0]
        print(f"{run}: {unpack_run(parcel, tree, selection, run, anew)} answers")


@app.command()
@with_exit_codes
def again(
    tree: Tree,
    minutes: Annotated[float, typer.Option(min=0, help="End in time; what is left goes on with the next call.")] = 1e6,
    folder: Folder = ROOT / "results",
) -> None:
    """Judge every kept kernel a second time, and say which intervals meet. Exit code 1 unless all of them do."""
    from bench.results.again import judge_again
    from bench.results.records import read_index

    left = judge_again(folder, tree, lambda line: print(line, flush=True), minutes)
    kept = [row for row in read_index(folder).rows if row.kernel]
    agreeing = sum(row.again is not None and row.again.meets for row in kept)
    for sentence in left:
        print(f"not judged again: {sentence}")
    print(f"the intervals of {agreeing} of {len(kept)} kept kernels meet")
    raise typer.Exit(0 if agreeing == len(kept) else FELL_SHORT)


@app.command()
@with_exit_codes
def join(
    others: Annotated[list[Path], typer.Argument(help="Copies of the folder in which `again` or `hazards` ran.")],
    folder: Folder = ROOT / "results",
) -> None:
    """Add what other processes judged in copies of the folder."""
    from bench.results.again import join as join_folders

    print(f"{join_folders(folder, others)} judgings added")


@app.command()
@with_exit_codes
def hazards(
    tree: Tree,
    minutes: Annotated[float, typer.Option(min=0, help="End in time; what is left goes on with the next call.")] = 1e6,
    folder: Folder = ROOT / "results",
) -> None:
    """Run compute-sanitizer's racecheck and synccheck over every kept kernel. Exit code 1 where some are left."""
    from bench.results.again import check_hazards

    left = check_hazards(folder, tree, lambda line: print(line, flush=True), minutes)
    print(f"{left} kernels are left")
    raise typer.Exit(FELL_SHORT if left else 0)


@app.command()
@with_exit_codes
def draw(
    folder: Folder = ROOT / "results",
    docs: Annotated[Path, typer.Option(help="Folder of the pages.")] = ROOT / "docs",
) -> None:
    """Draw the page and its pictures from the folder of results alone: no device, nothing judged, the same bytes."""
    from bench.results.page import write_page

    for path in write_page(folder, docs):
        print(path)


if __name__ == "__main__":
    app()
