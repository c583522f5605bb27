"""`header.json`: what a reader must know of a run before its events."""

import json
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, JsonValue, ValidationError

from kernelwright.agent.log.events import RunLogError
from kernelwright.problems.record.base import Record, first_fault
from kernelwright.sandbox.machine.atomic import write_atomically

FORMAT = 1
"""Raised whenever a record that is stored changes so that older code cannot read it."""
HEADER = "header.json"


class Setting(Record):
    """The circumstances of a run, as its starter knows them."""

    config: dict[str, JsonValue]
    """All that was chosen: what a resumed run needs to go on as this one would have. Never a key."""
    device: str
    """Processor or GPU."""
    versions: dict[str, str]
    """Of python, torch, the compiler, the driver and kernelwright."""
    commit: str | None = None
    """Of kernelwright's own checkout; None where it is not run from one."""


class Header(Setting):
    """The whole of `header.json`."""

    format: int = FORMAT
    run_id: str
    started: AwareDatetime
    problems: dict[str, str]
    """Name to digest; the log holds each whole record as a blob under its digest."""


def write_header(folder: Path, header: Header) -> None:
    """Put `header.json` in place, whole or not at all. Raises `OSError`."""
    write_atomically(folder / HEADER, header.model_dump_json(indent=2) + "\n")


def read_header(folder: Path) -> Header:
    """The header of the run in `folder`; `RunLogError` where there is none or this version cannot read it."""
    path = folder / HEADER
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunLogError(_missing(folder)) from error
    except OSError as error:
        raise RunLogError(f"cannot read {path} ({error.strerror}); check its permissions") from error
    except ValueError as error:
        raise RunLogError(f"{path} is not valid JSON; the file is damaged, restore it or start a new run") from error
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise RunLogError(
            f"{folder} is in format {version!r} and this version of kernelwright reads format {FORMAT}; "
            "use the version that wrote it"
        )
    try:
        return Header.model_validate(found)
    except ValidationError as error:
        raise RunLogError(f"{path} is damaged at {first_fault(error).key!r}; restore it or start a new run") from error


def _missing(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {folder}; give the folder of a run"
    return f"{folder} is not the folder of a run, since it holds no {HEADER}; give one that `kernelwright run` made"
