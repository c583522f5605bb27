"""Calls of `load_inline` and `load` as data: how one is found again, and how a worker hands one to a builder."""

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright_child import wire

OF_NO_MATTER = ("name", "build_directory", "verbose")
"""What may be another in each process, from the time of day or a random number, and builds the same."""
MADE_UP = re.compile(r"/tmp/tmp\w{8}")
"""A folder or file that `tempfile` has named, within the work folder."""


class Keys(NamedTuple):
    """What a call is found by: all of it; and without what is of no matter."""

    whole: str
    essence: str


class BuildCall(NamedTuple):
    """One call: the name of the function, and its arguments by the names of its parameters."""

    function: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> "BuildCall":
        """By the function's own parameters; raises `TypeError`, as the call itself would, where they do not fit."""
        return cls(function.__name__, dict(inspect.signature(function).bind(*arguments, **options).arguments))

    def keys(self, work_folder: Path) -> Keys:
        """Take them before the call is made, which changes the lists that it is given.

        A file counts by its content, and nothing names the work folder: neither is the same in another process.
        """
        essence = [(name, _essence(value)) for name, value in self.arguments.items() if name not in OF_NO_MATTER]
        given = _digest(f"{self.function} {sorted(essence)!r}", work_folder)
        exact = repr(sorted(self.arguments.items())).replace(str(work_folder), "")
        return Keys(hashlib.sha256(f"{exact} {given}".encode(errors="surrogatepass")).hexdigest(), given)


def write_note(path: Path, call: BuildCall, keys: Keys, environment: dict[str, str | None]) -> None:
    """Leave word of a call, with the files that its arguments name and what the candidate has set in its environment.

    Raises `WireError` for arguments that are no plain values.
    """
    arguments = {name: _plain(value) for name, value in call.arguments.items()}
    path.write_text(
        json.dumps(
            {
                "function": call.function,
                "arguments": wire.pack(arguments, []),
                "keys": list(keys),
                "files": {name: Path(name).read_text(errors="surrogateescape") for name in _files(arguments)},
                "environment": environment,
            }
        )
    )


def read_note(path: Path) -> tuple[BuildCall, Keys]:
    """The call of a note, with the environment set and the files in place where they are not."""
    note = json.loads(path.read_text())
    for name, value in note["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for name, text in note["files"].items():
        if not Path(name).exists():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, errors="surrogateescape")
    return BuildCall(note["function"], wire.unpack(note["arguments"], [])), Keys(*note["keys"])


def _essence(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _essence(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_essence(item) for item in value]
    if isinstance(value, str | os.PathLike) and os.path.isfile(value):  # noqa: PTH113 - a source text is no path
        return hashlib.sha256(Path(value).read_bytes()).hexdigest()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _digest(text: str, work_folder: Path) -> str:
    return hashlib.sha256(
        MADE_UP.sub("", text.replace(str(work_folder), "")).encode(errors="surrogatepass")
    ).hexdigest()


def _plain(value: Any) -> Any:
    """The same with paths as texts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _files(value: Any) -> list[str]:
    """The texts in it that are paths of files, as absolute ones."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in _files(item)]
    if isinstance(value, list):
        return [path for item in value for path in _files(item)]
    return [value] if isinstance(value, str) and os.path.isfile(value) else []  # noqa: PTH113
