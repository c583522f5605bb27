"""`kernelwright import`: problems and candidates of other benchmarks as folders that the other commands read."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.commands.options.exit_codes import DONE, FELL_SHORT, UserMistake
from kernelwright.commands.options.files import writing

if TYPE_CHECKING:
    from kernelwright.evals.formats.samples import Samples
    from kernelwright.problems.formats import Entry

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
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a problem or candidate, nothing else.")
    ] = False,
) -> None:
    """Read problems and candidates of another benchmark. Nothing is run. Exit code 1 if none was read."""
    from kernelwright.evals.formats.format_detection import candidate_format
    from kernelwright.problems.formats import format_of

    if not source.exists():
        raise UserMistake(f"there is no {source}; check the path")
    found_problems = format_of(source) is not None
    found_candidates = candidate_format(source) is not None
    if not found_problems and not found_candidates:
        raise UserMistake(f"{source} is in no format that is known; docs/formats.md lists them")
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
    for note in reading.notes:
        typer.echo(f"kernelwright: {note}", err=True)
    return [_line("problem", entry, places) for entry in entries]


def _line(kind: str, entry: "Entry", places: dict[str, str]) -> dict[str, object]:
    place = places.get(entry.id)
    path = f"{PROBLEMS}/{place}" if place else None
    found = {"kind": kind, "id": entry.id, "status": entry.status, "why": entry.why, "notes": list(entry.notes)}
    return {**found, "path": path}


def _candidates(source: Path, out: Path, problems: Path) -> list[dict[str, object]]:
    from kernelwright.evals.formats.folders import write_folder
    from kernelwright.evals.formats.format_detection import definitions_under, read_candidates

    samples = read_candidates(source, definitions_under(problems))
    places = _places(problems, samples)
    with writing(out):
        written = write_folder(out / CANDIDATES, samples.samples, places)
    for note in samples.notes:
        typer.echo(f"kernelwright: {note}", err=True)
    read = [(path.stem, "read", "", str(path.relative_to(out))) for path in written]
    refused = [(name, "unsupported", why, None) for name, why in samples.refused]
    keys = ("id", "status", "why", "path")
    return [{"kind": "candidate", "notes": []} | dict(zip(keys, one, strict=True)) for one in (*read, *refused)]


def _places(problems: Path, samples: "Samples") -> dict[str, list[str]]:
    """By definition, the folders of its problems: a solution is a candidate for each workload."""
    from kernelwright.problems.formats import format_of, read_collection

    places: dict[str, list[str]] = defaultdict(list)
    if samples.format == "flashinfer" and format_of(problems) is not None:
        for entry in read_collection(problems).entries:
            if entry.problem is not None and entry.problem.origin is not None:
                places[entry.problem.origin.title].append(entry.problem.name)
    return dict(places)


def _words(line: dict[str, object]) -> str:
    notes = line["notes"]
    said = "".join(f"; {note}" for note in notes) if isinstance(notes, list) else ""
    why = f" ({line['why']})" if line["why"] else ""
    place = f" -> {line['path']}" if line["path"] else ""
    return f"{line['kind']} {line['id']}: {line['status']}{why}{place}{said}"
