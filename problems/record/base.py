"""The base of every record, tables of TOML read into records, and what pydantic found wrong."""

import tomllib
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError


class Record(BaseModel):
    """A frozen, closed record: unknown fields are errors, and nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(NamedTuple):
    key: str
    """Its place, as `table.entry.field`; empty for the whole."""
    said: str


def first_fault(error: ValidationError) -> Fault:
    found = error.errors(include_url=False)[0]
    return Fault(".".join(str(part) for part in found["loc"]), found["msg"])


T = TypeVar("T")


def read_table(path: Path, kind: type[T], what: str, error: type[Exception]) -> T:
    """The table in a file as `kind`. Raises `error` with one sentence, in which `what` names the table."""
    try:
        return TypeAdapter(kind).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise error(f"cannot read {what} {path} ({fault.strerror}); check the path") from fault
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise error(f"{what} {path} is no valid TOML: {fault}; correct it") from fault
    except ValidationError as fault:
        key, said = first_fault(fault)
        raise error(f"{what} {path}: {key or 'the whole'}: {said}; correct it") from fault
