"""`kernelwright export`: the results of a run or a scored batch in the formats of other benchmarks."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.exit_codes import DONE, FELL_SHORT, UserMistake
from kernelwright.commands.options.files import writing

if TYPE_CHECKING:
    from kernelwright.evals.formats.samples import Outcome

FORMATS = ("jsonl", "parquet", "huggingface", "plain", "kernelbench", "leaderboard", "flashinfer", "sol-execbench")


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or the --out of a score.")],
    out: Annotated[Path | None, typer.Argument(help="File or folder to write; - prints JSON lines.")] = None,
    to: Annotated[str, typer.Option(help=f"Format: {', '.join(FORMATS)}.")] = "jsonl",
    best: Annotated[Path | None, typer.Option(help="Folder for each problem's best kernel, ready to use.")] = None,
    package: Annotated[
        Path | None, typer.Option(help="New folder: the kernels of a run over a capture as a package that needs no us.")
    ] = None,
    problems: Annotated[str | None, typer.Option(help="For a score: its PROBLEMS_DIR.")] = None,
    candidates: Annotated[Path | None, typer.Option(help="For a score: its CANDIDATES_DIR.")] = None,
    name: Annotated[str, typer.Option(help="For a leaderboard: who hands in.")] = "kernelwright",
) -> None:
    """Write results in the formats of other benchmarks. What one can not hold is told. Exit code 1 if nothing fits."""
    if to not in FORMATS:
        raise UserMistake(f"no format {to!r}; there are: {', '.join(FORMATS)}")
    if package is not None:
        print(_packaged(package, run))
    elif out is None and best is None:
        raise UserMistake("say where to write: a path behind the run, --best DIR or --package DIR")
    if out is None and best is None:
        return
    outcomes, left = _gathered(run, problems, candidates)
    fitted = True
    if best is not None:
        with writing(best):
            fitted = _best(best, outcomes)
    if out is not None:
        with writing(out):
            said = _write(to, out, outcomes, name)
        left += said
        fitted = fitted and len(outcomes) > 0 and len(said) < len(outcomes)
    for sentence in left:
        print(f"kernelwright: left out: {sentence}", file=sys.stderr)
    raise typer.Exit(DONE if fitted else FELL_SHORT)


def _packaged(folder: Path, run: Path) -> str:
    from kernelwright.programs.apply.kept import kept_kernels, write_package

    kept = kept_kernels(run)
    for part, why in kept.left.items():
        print(f"kernelwright: left out: {part}: {why}", file=sys.stderr)
    with writing(folder):
        said = write_package(folder, kept, str(run))
    return f"{folder}: {len(kept.kernels)} kernels, built for this machine; its tests: {said}"


def _gathered(run: Path, problems: str | None, candidates: Path | None) -> "tuple[list[Outcome], list[str]]":
    from kernelwright.evals.formats.samples import is_run, run_outcomes, score_outcomes
    from kernelwright.evals.scores.scoring import collect_problems

    if is_run(run):
        return run_outcomes(run), []
    if problems is None or candidates is None:
        raise UserMistake(
            f"{run} is not the folder of a run; for the --out of a score give its --problems and --candidates too"
        )
    return score_outcomes(run, collect_problems(problems), candidates)


def _best(folder: Path, outcomes: "list[Outcome]") -> bool:
    from kernelwright.evals.formats.folders import write_best

    found = write_best(folder, outcomes)
    for kept in found:
        print(kept)
    return bool(found)


def _write(to: str, out: Path, outcomes: "list[Outcome]", name: str) -> list[str]:
    """Write the outcomes; a sentence for each that the format has no place for."""
    from kernelwright.evals.formats import folders, kernelbench

    if str(out) == "-":
        for outcome in outcomes:
            print(json.dumps(folders.row_of(outcome)))
        return []
    match to:
        case "jsonl" | "parquet":
            folders.write_rows(out.with_suffix(".parquet") if to == "parquet" else out, outcomes)
        case "huggingface":
            folders.write_data_set(out, outcomes)
        case "plain":
            folders.write_folder(out, [outcome.sample for outcome in outcomes])
        case "kernelbench":
            return kernelbench.write_run(out, outcomes)
        case "leaderboard":
            metadata = kernelbench.Metadata(display_name=name, organization="", notes="")
            submission, left = kernelbench.submission_of(outcomes, metadata)
            kernelbench.write_submission(out, submission)
            return left
        case _:
            return _traces(out, outcomes, sol=to == "sol-execbench")
    return []


def _traces(out: Path, outcomes: "list[Outcome]", sol: bool) -> list[str]:
    """`solutions/NAME.json` and `traces/DEFINITION.jsonl`."""
    from kernelwright.evals.formats.solutions import solution_of, trace_of, traces_text, write_solution

    left: list[str] = []
    texts: dict[str, str] = {}
    for outcome in outcomes:
        origin = outcome.problem.origin
        if origin is None or "workload" not in origin.details:
            left.append(f"{outcome.problem.name} has no definition and workload")
            continue
        solution = solution_of(outcome, "sol-execbench" if sol else "flashinfer", outcome.device.replace(" ", "_"))
        write_solution(out / "solutions" / origin.title / f"{solution.name}.json", solution)
        texts[origin.title] = texts.get(origin.title, "") + traces_text([trace_of(outcome)])
    for definition, text in texts.items():
        (out / "traces").mkdir(parents=True, exist_ok=True)
        (out / "traces" / f"{definition}.jsonl").write_text(text, encoding="utf-8")
    return left
