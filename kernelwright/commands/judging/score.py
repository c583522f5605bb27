"""`kernelwright score`: many candidate files judged in one go."""

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options import judging_options as options
from kernelwright.commands.options.terminal import (
    DONE,
    FELL_SHORT,
    INTERRUPTED,
    MACHINE_LACKS,
    UserMistake,
    exit_with,
    table_console,
)

if TYPE_CHECKING:
    from kernelwright.evals.scores.batch_tables import BatchProgress
    from kernelwright.evals.scores.scoring import CandidateFile, Collected, Shard


def score(
    problems: Annotated[str, typer.Argument(help="Folder of problem files; or one problem, by path or name.")],
    candidates: Annotated[Path, typer.Argument(help="Folder of candidates: PROBLEM/*.py or PROBLEM__*.py.")],
    out: Annotated[Path, typer.Option(help="Folder of the verdicts; with the same one again it goes on.")] = Path(
        "scores"
    ),
    shard: Annotated[str | None, typer.Option(help="i/n: only the i-th of n parts of the files; default: all.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="--out folder of another shard; may be repeated.")] = None,
    builders: Annotated[int | None, typer.Option(min=1, help="Builds side by side; default: one a core.")] = None,
    size: Annotated[str | None, options.size_option("what fits the candidates", "catalog problems")] = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = None,
    memory: options.MemoryOption = None,
    threads: options.ThreadsOption = None,
    compiled: options.CompileOption = None,
    baselines: options.BaselinesOption = None,
    weights: options.WeightsOption = "auto",
    effort: options.EffortOption = "rank",
    accuracy: options.AccuracyOption = "ieee",
    executor: options.ExecutorOption = "local",
    address: options.AddressOption = None,
    devices: Annotated[int | None, options.devices_option("all GPUs, or 1 part")] = None,
    kind: options.KindOption = None,
    server: options.ServerOption = None,
    judging: Annotated[
        bool, typer.Option("--judge/--no-judge", help="--no-judge: tell what is on record, judge nothing.")
    ] = True,
    sanitize: options.SanitizeOption = False,
    profile: options.ProfileOption = False,
    wait_quiet: options.QuietOption = False,
    jail: options.JailOption = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a file: judge's report, problem, candidate.")
    ] = False,
) -> None:
    """Judge every candidate file in a folder. What has a verdict already is left alone.

    Exit code 1 if some have none in the end, 3 if this machine could judge none.
    """
    from rich.console import Console

    from kernelwright.evals.scores.batch_tables import BatchProgress
    from kernelwright.evals.scores.judgements import Judgements
    from kernelwright.evals.scores.scoring import DATABASE, Batch, Scored, collect_candidates, collect_problems
    from kernelwright.sandbox.pool.judge_pool import executor_for

    options.check_together(device, devices, executor)
    where = options.executor_choice(executor, address, devices, kind, builders, server)
    here = where.is_here and judging
    part = shard_of(shard)
    collected = collect_problems(problems, size, dtype)
    files, strangers = collect_candidates(candidates, {**collected.problems, **collected.broken})
    chosen = [file for file in files if part is None or part.has(file)]
    _tell_strangers(candidates, files, strangers)
    _tell_unread(collected, files)
    place = place_of(chosen, size, device, local=here)
    asked = options.JudgingOptions(
        place, memory, threads, compiled, jail, sanitize, profile, effort, baselines, weights, wait_quiet, accuracy
    )
    settings = asked.settings()
    if settings.gpu and size is None:
        collected = collect_problems(problems, options.size_for(problems, size, settings.device), dtype)
    if here:
        options.check_threads(threads, None if settings.gpu else devices)
    options.check_tools(sanitize, profile, settings.gpu, local=here)
    console = Console(stderr=as_json)
    with Judgements(out / DATABASE) as store, BatchProgress(len(chosen), console) as progress:
        store.merge(folder / DATABASE for folder in merge or ())

        def on_done(scored: Scored) -> None:
            if as_json:
                print(json.dumps(scored.line), flush=True)
            progress(scored)

        batch = Batch(store, on_done)
        try:
            if judging:
                batch.run(collected, chosen, executor_for(where, settings), kind)
            else:
                batch.tell(collected, chosen, kind)
        except KeyboardInterrupt:
            exit_with(INTERRUPTED, f"stopped; every verdict is kept in {out}, the same command goes on from there")
    if not as_json:
        _tell(progress, collected, out)
        print(f"Judged {f'by {server}' if server else f'on {options.place_words(settings.device, dtype)}'}.")
    lacking = [one for one in progress.done if one.machine_lacks]
    if lacking and len(lacking) == len(progress.done):
        exit_with(MACHINE_LACKS, f"no file could be judged on this machine: {lacking[0].report['reason']}")
    raise typer.Exit(DONE if all(one.measured for one in progress.done) else FELL_SHORT)


def place_of(files: "list[CandidateFile]", size: str | None, asked: str | None, local: bool = True) -> str:
    """The device of these candidates; `UserMistake` where some run on one and others can not."""
    examples = _examples(files)
    if asked is not None:
        for language in sorted(examples) or ["python"]:
            options.device_for(asked, language, size or "", local)
        return asked
    wanted = sorted(language for language in examples if options.device_for(None, language, size or "") != "cpu")
    if wanted and "cpp" in examples:
        raise UserMistake(
            f"{examples['cpp']} is in cpp, which runs on the processor, and {examples[wanted[0]]} in {wanted[0]}, "
            "which runs on a GPU here; put them into two folders and score them apart, or say where with --device"
        )
    return "cuda" if wanted else "cpu"


def _examples(files: "list[CandidateFile]") -> dict[str, str]:
    from kernelwright.evals.scores.scoring import read_source
    from kernelwright.sandbox.authenticity.languages import candidate_of

    examples: dict[str, str] = {}
    for file in files:
        with contextlib.suppress(OSError):  # told where it is judged
            examples.setdefault(candidate_of(read_source(file.path)).language, file.name)
    return examples


def shard_of(text: str | None) -> "Shard | None":
    """`2/8` as a `Shard`; `UserMistake` for anything else."""
    from kernelwright.evals.scores.scoring import Shard

    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserMistake(f"--shard is {text!r}; give i/n with i from 1 to n, such as 2/8")
    return Shard(int(match[1]), int(match[2]))


def _tell_strangers(folder: Path, files: "list[CandidateFile]", strangers: list[str]) -> None:
    rule = "put each in a folder named like its problem, or name it PROBLEM__anything.py"
    if not files:
        what = f"none of the {len(strangers)} .py files in {folder} names a problem" if strangers else "there is no .py"
        raise UserMistake(f"{what}; {rule}" if strangers else f"{what} file in {folder}; {rule}")
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        typer.echo(f"kernelwright: {len(strangers)} files belong to no problem ({shown}); {rule}", err=True)


def _tell_unread(collected: "Collected", files: "list[CandidateFile]") -> None:
    """A word on problem files that can not be read and have no candidate whose line would say so."""
    named = {file.problem for file in files}
    unread = [f"{name}: {why}" for name, why in collected.broken.items() if name not in named]
    if unread:
        shown = "; ".join(unread[:3]) + ("; ..." if len(unread) > 3 else "")
        typer.echo(f"kernelwright: {len(unread)} files are no problem that can be read ({shown})", err=True)


def _tell(progress: "BatchProgress", collected: "Collected", out: Path) -> None:
    from rich.text import Text

    from kernelwright.evals.scores.batch_tables import batch_table, unjudged_lines

    console = table_console()
    console.print(batch_table(progress.done, collected.problems))
    for line in unjudged_lines(progress.done):
        console.print(Text(line), soft_wrap=True)
    unjudged = sum(1 for one in progress.done if one.measured is None)
    if unjudged:
        files = "1 file has" if unjudged == 1 else f"{unjudged} files have"
        print(f"{files} no verdict; the same command tries again")
    print(f"The verdicts lie in {out}; the same command goes on from there.")
