"""`kernelwright export` and `import`: results in the formats of other benchmarks, and theirs as our folders."""

import json
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.options import ResultsArgument
from kernelwright.terminal import DONE, FELL_SHORT, UserMistake, json_option, note, writing

if TYPE_CHECKING:
    from kernelwright.evals.formats.samples import Outcome, Samples

FORMATS = ("jsonl", "parquet", "huggingface", "plain", "kernelbench", "leaderboard", "flashinfer", "sol-execbench")


def export(
    run: ResultsArgument,
    out: Annotated[Path | None, typer.Argument(help="File or folder to write; - prints JSON lines.")] = None,
    to: Annotated[str, typer.Option(help=f"Format: {', '.join(FORMATS)}.")] = "jsonl",
    best: Annotated[Path | None, typer.Option(help="Folder for each problem's best kernel, ready to use.")] = None,
    package: Annotated[
        Path | None, typer.Option(help="New folder: the kernels of a run over a capture as a package that needs no us.")
    ] = None,
    problems: Annotated[str | None, typer.Option(help="PROBLEMS_DIR of a score that has not kept them.")] = None,
    candidates: Annotated[Path | None, typer.Option(help="CANDIDATES_DIR of a score that has not kept them.")] = None,
    name: Annotated[str, typer.Option(help="For a leaderboard: who hands in.")] = "kernelwright",
) -> None:
    """Write results in the formats of other benchmarks, and name those that a format cannot hold.

    Exit code 1 if nothing fits.
    """
    if to not in FORMATS:
        raise UserMistake(f"no format {to!r}; there are: {', '.join(FORMATS)}")
    if package is not None:
        from kernelwright.programs.apply import kept_kernels, write_package

        kernels = kept_kernels(run)
        for part, why in kernels.left.items():
            note(f"left out: {part}: {why}")
        with writing(package):
            tests = write_package(package, kernels, str(run))
        print(f"{package}: {len(kernels.kernels)} kernels, built for this machine; its tests: {tests}")
    elif out is None and best is None:
        raise UserMistake("say where to write: a path behind the run, --best DIR or --package DIR")
    if out is None and best is None:
        return
    outcomes, left = _gathered(run, problems, candidates)
    fitted = True
    if best is not None:
        from kernelwright.evals.formats.samples import write_best

        with writing(best):
            kept = write_best(best, outcomes)
        for path in kept:
            print(path)
        fitted = bool(kept)
    if out is not None:
        with writing(out):
            unfit = _write(to, out, outcomes, name)
        left += unfit
        fitted = fitted and len(outcomes) > 0 and len(unfit) < len(outcomes)
    for sentence in dict.fromkeys(left):
        note(f"left out: {sentence}")
    raise typer.Exit(DONE if fitted else FELL_SHORT)


def _gathered(run: Path, problems: str | None, candidates: Path | None) -> "tuple[list[Outcome], list[str]]":
    from kernelwright.evals.formats.samples import outcomes_of
    from kernelwright.evals.score import collect_problems, read_source
    from kernelwright.evals.verdict_store import DATABASE, VerdictStore, is_score, source_digest

    judged = VerdictStore.read(run / DATABASE) if is_score(run) else []
    texts = {one.digest: one.record for one in collect_problems(problems).problems.values()} if problems else {}
    for name in {one.candidate for one in judged} if candidates else ():
        with suppress(OSError):
            source = read_source(Path(str(candidates), name))
            texts[source_digest(source)] = source
    found = outcomes_of(run, texts)
    known = {(one.problem.digest, one.sample.candidate.digest) for one in found}
    left = {one.candidate for one in judged if (one.problem_digest, one.candidate_digest) not in known}
    return found, [
        f"the source or the problem of {name} was not kept; give --problems and --candidates" for name in sorted(left)
    ]


def _write(to: str, out: Path, outcomes: "list[Outcome]", name: str) -> list[str]:
    from kernelwright.evals.formats import kernelbench, samples

    if str(out) == "-":
        for outcome in outcomes:
            print(json.dumps(samples.row_of(outcome)))
        return []
    match to:
        case "jsonl" | "parquet":
            samples.write_rows(out.with_suffix(".parquet") if to == "parquet" else out, outcomes)
        case "huggingface":
            samples.write_data_set(out, outcomes)
        case "plain":
            samples.write_folder(out, [outcome.sample for outcome in outcomes])
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
    """Write `solutions/NAME.json` and `traces/DEFINITION.jsonl`."""
    from kernelwright.evals.formats.flashinfer import solution_of, trace_of, write_solution

    left: list[str] = []
    texts: dict[str, str] = {}
    for outcome in outcomes:
        origin = outcome.problem.origin
        if origin is None or "workload" not in origin.details:
            left.append(f"{outcome.problem.name} has no definition and workload")
            continue
        solution = solution_of(outcome, "sol-execbench" if sol else "flashinfer", outcome.device.replace(" ", "_"))
        write_solution(out / "solutions" / origin.title / f"{solution.name}.json", solution)
        texts[origin.title] = texts.get(origin.title, "") + json.dumps(trace_of(outcome).as_json()) + "\n"
    for definition, text in texts.items():
        (out / "traces").mkdir(parents=True, exist_ok=True)
        (out / "traces" / f"{definition}.jsonl").write_text(text, encoding="utf-8")
    return left


PROBLEMS, CANDIDATES = "problems", "candidates"


def import_(
    source: Annotated[Path, typer.Argument(help="Problems or candidates of another benchmark: file or folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write: OUT/problems and OUT/candidates.")],
    only: Annotated[
        str, typer.Option(help="A selection of the problems, such as level1[3,7,10-20]; default: all.")
    ] = "",
    problems: Annotated[
        Path | None, typer.Option(help="Where the definitions lie that the candidates are for, if not in SOURCE.")
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object a problem or candidate, nothing else.")] = False,
) -> None:
    """Read problems and candidates of another benchmark. Nothing is run. Exit code 1 if none was read."""
    from kernelwright.evals.formats import candidate_format
    from kernelwright.problems.formats import format_of

    if not source.exists():
        raise UserMistake(f"there is no {source}; check the path")
    found_problems = format_of(source) is not None
    found_candidates = candidate_format(source) is not None
    if not found_problems and not found_candidates:
        raise UserMistake(f"{source} is in no format that is known; docs/problems.md lists them")
    lines = _problems(source, out, only) if found_problems else []
    if found_candidates:
        lines += _candidates(source, out, problems or source)
    for line in lines:
        print(json.dumps(line) if as_json else _words(line))
    if not as_json:
        counts = Counter(f"{line['kind']}s {line['status']}" for line in lines)
        print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())) + f"; written to {out}")
    raise typer.Exit(DONE if any(line["status"] == "read" for line in lines) else FELL_SHORT)


def _problems(source: Path, out: Path, only: str) -> list[dict[str, object]]:
    from kernelwright.problems.formats import read_collection, select
    from kernelwright.problems.formats.reading import write_collection

    reading = read_collection(source)
    entries = select(reading.entries, only)
    with writing(out):
        places = write_collection(out / PROBLEMS, entries)
    for sentence in reading.notes:
        note(sentence)
    return [
        {"kind": "problem", "id": entry.id, "status": entry.status, "why": entry.why, "notes": list(entry.notes)}
        | {"path": f"{PROBLEMS}/{places[entry.id]}" if places.get(entry.id) else None}
        for entry in entries
    ]


def _candidates(source: Path, out: Path, problems: Path) -> list[dict[str, object]]:
    from kernelwright.evals.formats import definitions_under, read_candidates
    from kernelwright.evals.formats.samples import write_folder

    samples = read_candidates(source, definitions_under(problems))
    places = _places(problems, samples)
    with writing(out):
        written = write_folder(out / CANDIDATES, samples.samples, places)
    for sentence in samples.notes:
        note(sentence)
    read = [(path.stem, "read", "", str(path.relative_to(out))) for path in written]
    refused = [(name, "unsupported", why, None) for name, why in samples.refused]
    keys = ("id", "status", "why", "path")
    return [{"kind": "candidate", "notes": []} | dict(zip(keys, one, strict=True)) for one in (*read, *refused)]


def _places(problems: Path, samples: "Samples") -> dict[str, list[str]]:
    from kernelwright.problems.formats import format_of, read_collection

    places: dict[str, list[str]] = defaultdict(list)
    if samples.format == "flashinfer" and format_of(problems) is not None:
        for entry in read_collection(problems).entries:
            if entry.problem is not None and entry.problem.origin is not None:
                places[entry.problem.origin.title].append(entry.problem.name)
    return dict(places)


def _words(line: dict[str, object]) -> str:
    notes = line["notes"]
    said = "".join(f"; {one}" for one in notes) if isinstance(notes, list) else ""
    why = f" ({line['why']})" if line["why"] else ""
    place = f" -> {line['path']}" if line["path"] else ""
    return f"{line['kind']} {line['id']}: {line['status']}{why}{place}{said}"
