"""`kernelwright show`, `inspect`, `leaderboard` and `diff`: runs and scores in a terminal, in a browser, on a board."""

import difflib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.options import ResultsArgument, judging_effort
from kernelwright.problems.problem import LibraryMissing
from kernelwright.terminal import (
    FELL_SHORT,
    UserMistake,
    exit_with,
    fit_for,
    json_option,
    note,
    read_text,
    table_console,
    writing,
)

if TYPE_CHECKING:
    from kernelwright.evals.leaderboard import Board
    from kernelwright.evals.verdict_store import RunSummary
    from kernelwright.sandbox.verdict.settings import JudgingEffort


def show(
    run: ResultsArgument,
    what: Annotated[
        str | None,
        typer.Argument(
            help="PROBLEM/3 for the source of attempt 3, PROBLEM/reference or PROBLEM/manifest for the problem's texts."
        ),
    ] = None,
    as_json: Annotated[bool, json_option("The index, or the whole attempt, as one JSON object.")] = False,
) -> None:
    """Print a run as a tree of its attempts. Or the source of one of them, named behind the run."""
    from kernelwright.evals.inspector.pages import RunModel, find_attempt, source_of
    from kernelwright.evals.report import run_tree
    from kernelwright.evals.verdict_store import log_of

    with log_of(run) as log:
        found = None if what is None else find_attempt(what)
        if what is not None and found is None:
            raise UserMistake(
                f"{what!r} names no attempt; give PROBLEM/NUMBER, such as {next(iter(log.header.problems))}/1"
            )
        attempt = found[1] if found is not None and isinstance(found[1], int) else None
        if found is not None and (attempt is None or not as_json):
            problem, text = found
            source = source_of(log, problem, text)
            if source is None:
                exit_with(FELL_SHORT, f"the reply of attempt {text} held no candidate")
            if as_json:
                print(json.dumps({"problem": problem, "source": source}))
            else:
                print(fit_for(sys.stdout, source), end="")
            return
        model = RunModel(log)
        if as_json:
            print(json.dumps(model.detail(found[0], attempt or 0) if found else model.index()))
        else:
            tree = run_tree(f"{log.header.run_id} on {log.header.device}", model.views)
            table_console(highlight=False).print(tree)


def inspect(
    folder: Annotated[Path, typer.Argument(help="A run, the --out of a score, or a folder that holds some.")],
    export: Annotated[
        Path | None, typer.Option(help="Write it as one HTML file, or as a picture (.svg), and end.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free one.")] = 8765,
) -> None:
    """Look at runs and scores: tree, prompts, replies, logs and plots. Live on this machine, or as one offline file."""
    from kernelwright.evals.verdict_store import folders_in

    found = folders_in(folder)
    if export is not None:
        from kernelwright.evals.inspector.pages import export as write

        if len(found) > 1:
            names = ", ".join(path.name for path in found[:5])
            raise UserMistake(f"a file shows one run or score and there are {len(found)} ({names}); name one of them")
        if export.suffix not in (".html", ".htm", ".svg"):
            raise UserMistake(
                f"{export} would be a page or a picture under another name; give report.html or picture.svg"
            )
        with writing(export):
            size = write(found[0], export)
        print(f"{export}: {size / 1e6:.2g} MB; open it in a browser, it needs no network")
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


def leaderboard(
    folders: Annotated[list[Path], typer.Argument(help="Runs, --out folders of scores, or folders that hold some.")],
    verify: Annotated[int, typer.Option(min=0, help="Judge the kernels of the N best rows again.")] = 0,
    effort: Annotated[
        str, typer.Option(help="The least effort of verdicts that count: screen, search or rank.")
    ] = "rank",
    metric: Annotated[
        list[str] | None, typer.Option(help="A column of your own, file.py:function; may be repeated.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="md, csv, json or html; default: by the ending of --out, else a table."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    as_json: Annotated[bool, json_option("The same as --format json.")] = False,
) -> None:
    """Rank models, strategies and scores, a board for each device, by the lower bounds of the best speedups."""
    from kernelwright.evals.leaderboard import load_metrics, with_metrics
    from kernelwright.evals.tables import FORMATS, board_tables, unranked
    from kernelwright.evals.verdict_store import summaries

    if as_json and form not in (None, "json"):
        raise UserMistake(f"--json and --format {form} are two formats; leave one of them out")
    chosen = "json" if as_json else form or (out.suffix.lstrip(".") if out else None)
    if chosen is not None and chosen not in FORMATS:
        raise UserMistake(f"no format {chosen!r}; there are: {', '.join(FORMATS)}")
    own = load_metrics(metric or ())
    facts = summaries(folders, lambda error: note(f"left out: {error}"))
    found = with_metrics(_boards(list(facts), verify, judging_effort(effort)), own)
    if chosen is None:
        console = table_console()
        for board in found:
            for table in board_tables(board, console.width):
                console.print(table)
            if board.weak:
                print(unranked(board))
        if stale := sum(row.stale for board in found for row in board.rows):
            remedy = "--verify judges those of the best rows again"
            print(f"{stale} numbers were reached under another judge version; {remedy}")
        cells = (cell for board in found for row in board.rows for cell in row.cells)
        for why, count in Counter(cell.why for cell in cells if cell.status == "provisional").items():
            print(f"{count} kernels do not count: {why}; --verify judges those of the best rows in full")
    elif out is None:
        print(FORMATS[chosen](found))
    else:
        with writing(out):
            out.write_text(FORMATS[chosen](found), encoding="utf-8")


def _boards(runs: "list[RunSummary]", verify: int, effort: "JudgingEffort") -> "list[Board]":
    from kernelwright.agent.briefs import sheet_for
    from kernelwright.evals.leaderboard import boards
    from kernelwright.evals.score import Verifier
    from kernelwright.problems.languages import ON_DEVICE
    from kernelwright.sandbox.jail.zygote import prepare_judge
    from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

    if verify:
        prepare_judge()
    gpu = {target for run in runs for target in run.target.split(", ")} & set(ON_DEVICE) if verify else set()
    here = sheet_for("cuda" if gpu else "cpp").name if verify else ""
    if verify and here not in {run.device for run in runs}:
        devices = ", ".join(sorted({run.device for run in runs}))
        raise UserMistake(f"this machine is {here!r} and the runs were made on {devices}; verify them there")
    verifier = Verifier(here, lambda cell, again: print(f"judged again: {cell.problem}", file=sys.stderr), effort)
    return verifier.verify_top(runs, verify) if verify else boards(runs, str(JUDGE_VERSION), verifier.lookup, effort)


def diff(
    first: Annotated[str, typer.Argument(help="A run, RUN:PROBLEM/NUMBER, or a file.")],
    second: Annotated[str, typer.Argument(help="The same kind of thing.")],
    as_json: Annotated[bool, json_option("For runs: the comparison as one JSON object.")] = False,
) -> None:
    """Compare two runs: paired speedup ratios and a sign test. Or two candidates: the lines that differ."""
    runs = [(Path(name) / "header.json").is_file() for name in (first, second)]
    if all(runs):
        _compare(Path(first), Path(second), as_json)
    elif any(runs):
        other = second if runs[0] else first
        raise UserMistake(f"{other} is not the folder of a run and the other one is; give two runs, or two candidates")
    elif as_json:
        raise UserMistake("--json is for two runs; leave it out to see the lines of two candidates")
    else:
        before, after = _source(first), _source(second)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), first, second, lineterm="")
        print("\n".join(lines))


def _source(name: str) -> str:
    from kernelwright.evals.inspector.pages import find_attempt, source_of
    from kernelwright.evals.verdict_store import log_of

    folder, colon, what = name.rpartition(":")
    found = find_attempt(what) if colon else None
    if found is None:
        return read_text(name, "file or run")
    with log_of(Path(folder)) as log:
        source = source_of(log, *found)
    if source is None:
        raise UserMistake(f"{name} has no candidate, since its reply held none; choose another attempt")
    return source


def _compare(first: Path, second: Path, as_json: bool) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from kernelwright.evals.leaderboard import compare_runs
    from kernelwright.evals.verdict_store import run_summary
    from kernelwright.sandbox.verdict.report import marks, ratio_words

    ours, theirs = run_summary(first), run_summary(second)
    try:
        found = compare_runs(ours, theirs)
    except ValueError as error:
        raise UserMistake(str(error)) from None
    if as_json:
        print(found.model_dump_json())
        return
    if ours.device != theirs.device:
        print(f"Two devices, {ours.device} and {theirs.device}: each speedup is against a baseline on its own one.")
    table = Table("problem", found.first, found.second, "ratio", "better", box=SIMPLE)
    for column in table.columns:
        column.overflow = "fold"
    for pair in found.pairs:
        sides = zip((pair.first, pair.second), pair.intervals, pair.comparisons, pair.timing_clocks, strict=True)
        shown = [
            ratio_words(ratio, *(ends or (None, None))) + marks(comparison, clock) if ratio else "-"
            for ratio, ends, comparison, clock in sides
        ]
        shown.append(f"{pair.ratio:.2f} x" if pair.ratio else "-")
        winner = {"first": found.first, "second": found.second, "same": "neither"}[pair.winner]
        table.add_row(pair.problem, *shown, winner)
    Console().print(table)
    mean = found.ratio
    if mean:
        interval = f" [{mean.low:.2f}, {mean.high:.2f}]" if mean.low and mean.high else ""
        print(f"Where both found a kernel beyond doubt, {found.second} is {mean.value:.2f} x as fast{interval}.")
    clocks = [one.problem for one in found.pairs if None not in one.timing_clocks and len({*one.timing_clocks}) > 1]
    if clocks:
        print(f"Timed by two clocks, not compared: {', '.join(clocks)}. Judge the older run again to compare them.")
    print(f"{found.second} is better on {found.wins}, worse on {found.losses}; sign test p = {found.p_value:.3g}.")
    for name, only in ((found.first, found.only_first), (found.second, found.only_second)):
        if only:
            print(f"Only in {name}, not counted: {', '.join(only)}")
