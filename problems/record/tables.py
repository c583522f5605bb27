"""Tables that people write in TOML, read into records."""

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from kernelwright.problems.record.faults import first_fault

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
