"""A run that waits for answers, made small for the way: its log and its answers, without the files of the benchmark.

The log holds every problem and prompt, and with them the benchmark's own files. The text of each is replaced by its
address; `unpack` puts it back from a checkout, and every text must come to the digest by which the log knows it.
"""

import gzip
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.results.records import write_compressed
from bench.results.selection import Selection, chosen_texts
from kernelwright.agent.log.store import DATABASE, HEADER
from kernelwright.agent.providers.files import ANSWER, TASKS
from kernelwright.problems import ProblemError

NUMBERS = "application_id", "user_version"
SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"


def pack(run: Path, tree: Path, selection: Selection, out: Path) -> int:
    """Write the run's folder as one file, the same bytes for the same run; how many there are.

    Raises `ProblemError` where it is no run's folder or the checkout is another one.
    """
    marks = _marks(chosen_texts(selection, tree))
    try:
        with closing(sqlite3.connect(f"{(run / DATABASE).resolve().as_uri()}?mode=ro", uri=True)) as log:
            numbers = {name: log.execute(f"PRAGMA {name}").fetchone()[0] for name in NUMBERS}
            schema = [statement for (statement,) in log.execute(SCHEMA)]
            events = log.execute(
                "SELECT seq, time, kind, problem, attempt, payload FROM events ORDER BY seq"
            ).fetchall()
            blobs = dict(log.execute("SELECT sha256, bytes FROM blobs ORDER BY sha256").fetchall())
    except sqlite3.Error as error:
        raise ProblemError(f"{run} holds no log of a run that can be read ({error})") from None
    texts = {digest: _replaced(raw.decode(), marks) for digest, raw in blobs.items()}
    _restored(texts, marks, run)
    parcel = {
        "header": (run / HEADER).read_text(encoding="utf-8"),
        "numbers": numbers,
        "schema": schema,
        "events": events,
        "blobs": texts,
        "answers": {path.name: path.read_text(encoding="utf-8") for path in sorted((run / TASKS).glob(f"*{ANSWER}"))},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_compressed(out, json.dumps(parcel, ensure_ascii=False, indent=0))
    return out.stat().st_size


def unpack(parcel: Path, tree: Path, selection: Selection, run: Path) -> int:
    """Lay out the run's folder anew; how many answers are in it. `kernelwright resume` writes its tasks again.

    Raises `ProblemError` where the folder is taken, or a text does not come to its digest.
    """
    if run.exists() and any(run.iterdir()):
        raise ProblemError(f"{run} is not empty; choose another folder")
    try:
        found: dict[str, Any] = json.loads(gzip.decompress(parcel.read_bytes()))
        if not {"header", "numbers", "schema", "events", "blobs", "answers"} <= found.keys():
            raise ValueError("parts of it are missing")
    except (OSError, EOFError, ValueError, AttributeError, zlib.error) as error:
        raise ProblemError(f"{parcel} is no parcel of a run ({error})") from None
    blobs = _restored(found["blobs"], _marks(chosen_texts(selection, tree)), parcel)
    strange = [name for name in found["answers"] if Path(name).name != name]
    if strange:
        raise ProblemError(f"{parcel} would write outside of the run's folder ({strange[0]}); it is not one of ours")
    (run / TASKS).mkdir(parents=True)
    (run / HEADER).write_text(found["header"], encoding="utf-8")
    for name, text in found["answers"].items():
        (run / TASKS / name).write_text(text, encoding="utf-8")
    with closing(sqlite3.connect(run / DATABASE)) as log, log:
        log.execute("PRAGMA journal_mode = WAL")
        for name in NUMBERS:
            log.execute(f"PRAGMA {name} = {int(found['numbers'][name])}")
        for statement in found["schema"]:
            log.execute(statement)
        log.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", found["events"])
        log.executemany("INSERT INTO blobs VALUES (?, ?)", blobs.items())
    return len(found["answers"])


def _restored(texts: Mapping[str, str], marks: Mapping[str, str], where: Path) -> dict[str, bytes]:
    """With the benchmark's texts in their places, each of which must come to its digest."""
    back = {mark: text for text, mark in marks.items()}
    found = {digest: _replaced(text, back).encode() for digest, text in texts.items()}
    for digest, raw in found.items():
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ProblemError(f"a text of {where} does not come to its digest {digest[:8]}; give the same checkout")
    return found


def _marks(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a mark for each text of the benchmark, as it is and as it stands in JSON; the longest text first."""
    marks = {}
    for address, text in texts.items():
        marks[text] = f"\0{address}\0"
        marks[json.dumps(text, ensure_ascii=False)[1:-1]] = f"\0json {address}\0"
    return dict(sorted(marks.items(), key=lambda pair: -len(pair[0])))


def _replaced(text: str, marks: Mapping[str, str]) -> str:
    for old, new in marks.items():
        text = text.replace(old, new)
    return text
