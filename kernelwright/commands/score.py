"""`kernelwright score`: many candidate files judged in one go."""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright import options
from kernelwright.terminal import (
    DONE,
    FELL_SHORT,
    INTERRUPTED,
    MACHINE_LACKS,
    UserMistake,
    exit_with,
    json_option,
    note,
    table_console,
)

if TYPE_CHECKING:
    from kernelwright.evals.report import BatchProgress
    from kernelwright.evals.score import CandidateFile, Collected, Shard


def score(
    problems: Annotated[str, typer.Argument(help="Folder of problem files; or one problem, by path or name.")],
    candidates: Annotated[Path, typer.Argument(help="Folder of candidates: PROBLEM/*.py or PROBLEM__*.py.")],
    out: Annotated[Path, typer.Option(help="Folder of the verdicts; with the same one again it goes on.")] = Path(
        "scores"
    ),
    shard: Annotated[str | None, typer.Option(help="i/n: only the i-th of n parts of the files; default: all.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="--out folder of another shard; may be repeated.")] = None,
    builders: options.BuildersOption = None,
    asked: options.JudgingOptions = options.RANKING,
    where: options.DeviceOptions = options.HERE,
    judging: Annotated[
        bool, typer.Option("--judge/--no-judge", help="--no-judge: tell what is on record, judge nothing.")
    ] = True,
    as_json: Annotated[bool, json_option("One JSON object a file: judge's report, problem, candidate.")] = False,
) -> None:
    """Judge every candidate file in a folder. What has a verdict already is left alone.

    Exit code 1 if some have none in the end, 3 if this machine could judge none.
    """
    from rich.console import Console

    from kernelwright.evals.report import BatchProgress
    from kernelwright.evals.score import Batch, Scored, collect_candidates, collect_problems
    from kernelwright.evals.verdict_store import DATABASE, VerdictStore
    from kernelwright.sandbox.pool.judge_pool import executor_for

    where.check_with(asked.device)
    choice = where.choice(builders)
    here = choice.is_here and judging
    part = shard_of(shard)
    collected = collect_problems(problems, asked.size, asked.dtype)
    files, strangers = collect_candidates(candidates, {**collected.problems, **collected.broken})
    chosen = [file for file in files if part is None or part.has(file)]
    _note_left_out(candidates, files, strangers, collected.broken)
    settings = asked.settings(device_of(chosen, asked.size, asked.device, local=here))
    if settings.gpu and asked.size is None:
        collected = collect_problems(problems, options.size_for(problems, None, settings.device), asked.dtype)
    if here:
        options.check_threads(asked.threads, None if settings.gpu else where.devices)
    asked.check_tools(settings.gpu, local=here)
    console = Console(stderr=as_json)
    with VerdictStore(out / DATABASE) as store, BatchProgress(len(chosen), console) as progress:
        store.merge(folder / DATABASE for folder in merge or ())

        def on_done(scored: Scored) -> None:
            if as_json:
                print(json.dumps(scored.line), flush=True)
            progress(scored)

        batch = Batch(store, on_done)
        try:
            if judging:
                batch.run(collected, chosen, executor_for(choice, settings), where.kind)
            else:
                batch.report_known(collected, chosen, where.kind)
        except KeyboardInterrupt:
            exit_with(INTERRUPTED, f"stopped; every verdict is kept in {out}, the same command goes on from there")
    if not as_json:
        _print(progress, collected, out)
        place = f"on {options.device_words(settings.device, asked.dtype)}"
        print(f"Judged {f'by {where.server}' if where.server else place}.")
    lacking = [one for one in progress.done if one.machine_lacks]
    if lacking and len(lacking) == len(progress.done):
        exit_with(MACHINE_LACKS, f"no file could be judged on this machine: {lacking[0].report['reason']}")
    raise typer.Exit(DONE if all(one.measured for one in progress.done) else FELL_SHORT)


def device_of(files: "list[CandidateFile]", size: str | None, asked: str | None, local: bool = True) -> str:
    """Return the device of these candidates; `UserMistake` where some run on one and others cannot."""
    from kernelwright.evals.score import read_source
    from kernelwright.sandbox.authenticity.scan import candidate_of

    examples: dict[str, str] = {}
    for file in files:
        with contextlib.suppress(OSError):  # reported where it is judged
            examples.setdefault(candidate_of(read_source(file.path)).language, file.name)
    if asked is not None:
        for language in sorted(examples) or ["python"]:
            options.device_for(asked, language, size or "", local)
        return asked
    wanted = sorted(language for language in examples if options.device_for(None, language, size or "") != "cpu")
    if wanted and "cpp" in examples:
        raise UserMistake(
            f"{examples['cpp']} is in cpp, which runs on the processor, and {examples[wanted[0]]} in {wanted[0]}, "
            "which runs on a GPU here; put them into two folders and score them separately, or say where with --device"
        )
    return "cuda" if wanted else "cpu"


def shard_of(text: str | None) -> "Shard | None":
    """Parse `2/8` as a `Shard`; `UserMistake` for anything else."""
    from kernelwright.evals.score import Shard

    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserMistake(f"--shard is {text!r}; give i/n with i from 1 to n, such as 2/8")
    return Shard(int(match[1]), int(match[2]))


def _note_left_out(folder: Path, files: "list[CandidateFile]", strangers: list[str], broken: Mapping[str, str]) -> None:
    """Name files that belong to no problem, and unreadable problems that have no candidate whose line says so."""
    from kernelwright.evals.score import files_in

    rule = "put each in a folder named like its problem, or name it PROBLEM__anything.py"
    if not files:
        what = f"none of the {len(strangers)} .py files in {folder} names a problem" if strangers else "there is no .py"
        raise UserMistake(f"{what}; {rule}" if strangers else f"{what} file in {folder}; {rule}")
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        note(f"{len(strangers)} files belong to no problem ({shown}); {rule}")
    if replies := len(files_in(folder, ".md", ".txt")):
        note(f"{replies} .md and .txt files are not judged; take candidates out of replies by `kernelwright extract`")
    named = {file.problem for file in files}
    unread = [f"{name}: {why}" for name, why in broken.items() if name not in named]
    if unread:
        shown = "; ".join(unread[:3]) + ("; ..." if len(unread) > 3 else "")
        note(f"{len(unread)} files are no problem that can be read ({shown})")


def _print(progress: "BatchProgress", collected: "Collected", out: Path) -> None:
    from rich.text import Text

    from kernelwright.evals.report import batch_table, unjudged_lines

    console = table_console()
    console.print(batch_table(progress.done, collected.problems))
    for line in unjudged_lines(progress.done):
        console.print(Text(line), soft_wrap=True)
    unjudged = sum(1 for one in progress.done if one.measured is None)
    if unjudged:
        files = "1 file has" if unjudged == 1 else f"{unjudged} files have"
        print(f"{files} no verdict; the same command tries again")
    print(f"The verdicts lie in {out}; the same command goes on from there.")
