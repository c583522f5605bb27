"""`load_inline` and `load` in two halves: the builder records what each call came to, the worker replays it.

So a worker compiles nothing and needs neither compiler nor ninja: it gets the extension that was built, or the error
that was met. torch's own code decides how things are built. A call that the builder did not see (made only inside
`forward`, say) is noted by the worker, which goes no further; another builder makes it, and a new worker begins again.
Nothing in the index names the work folder, so what one builder made serves a worker in another folder too.
"""

import builtins
import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import cpp_extension

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
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _files(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [path for item in value.values() for path in _files(item)]
    if isinstance(value, list):
        return [path for item in value for path in _files(item)]
    return [value] if isinstance(value, str) and os.path.isfile(value) else []  # noqa: PTH113


INDEX = "built.json"
NOTE = "unbuilt.json"
"""In the folder for temporary files: the call that a worker has noted."""
LIBRARIES = cpp_extension.TORCH_LIB_PATH
"""Torch's, before `_replace`."""
HEAD_CHARACTERS, TAIL_CHARACTERS = 20_000, 4000
"""Of an error's words, so much is kept. What decides stands at the head."""
TOLD_CHARACTERS = 8000
Entry = dict[str, Any]
"""What a call came to: `path` and `module` (None for a library), or `extension`, `error` (its type) and `text`."""


class Index:
    def __init__(self, top: Path) -> None:
        self.top = top
        self._path = top / INDEX
        self._entries: dict[str, Entry] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def find(self, keys: Keys) -> Entry | None:
        return self._entries.get(keys.whole) or self._entries.get(keys.essence)

    def failed(self, keys: Keys) -> Entry | None:
        entry = self._entries.get(keys.whole)
        return entry if entry is not None and "error" in entry else None

    def add(self, keys: Keys, entry: Entry) -> None:
        """Write it down at once, since what follows may end the process."""
        self._entries |= dict.fromkeys(keys, entry)
        self.save()

    def save(self) -> None:
        """In place of the file that may be there, which need not belong to this user."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._entries))
        new.replace(self._path)


class Recorder:
    def __init__(self, folder: str) -> None:
        self.index = Index(Path(folder))
        self.failures: list[Entry] = []
        # There even where nothing is built, so that the end of a build can be told from none.
        self.index.save()

    def make(self, build: Callable[[], Any], call: BuildCall, keys: Keys) -> Any:
        """The call's result or its error; what has failed once is not tried again."""
        known = self.index.failed(keys)
        if known is not None:
            raise replayed(known)
        try:
            result = build()
        except BaseException as error:
            text = str(error)
            if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
                text = f"{text[:HEAD_CHARACTERS]}\n[...]\n{text[-TAIL_CHARACTERS:]}"
            kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins")
            self.failures.append({"extension": str(call.arguments.get("name")), "error": kind, "text": text})
            self.index.add(keys, self.failures[-1])
            raise
        path = result if isinstance(result, str) else getattr(result, "__file__", None)
        if path:
            module = None if isinstance(result, str) else result.__name__
            self.index.add(keys, {"path": os.path.relpath(path, self.index.top), "module": module})
        return result

    def words_beside(self, error: BaseException) -> str:
        """The first failure's words, where this error is another one that does not tell of it."""
        told = "".join(str(one) for one in wire.causes(error))
        missing = [entry["text"] for entry in self.failures if entry["text"][:TOLD_CHARACTERS] not in told]
        return missing[0][:TOLD_CHARACTERS] if missing else ""


def record(folder: str) -> Recorder:
    """From now on, note in the index what every call comes to."""
    recorder = Recorder(folder)

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made = BuildCall.of(function, arguments, options)
            keys = made.keys(recorder.index.top.parent)
            return recorder.make(lambda: function(*arguments, **options), made, keys)

        return call

    _replace(recording)
    return recorder


def build_noted(folder: str) -> None:
    """Make the call that a worker has noted, in a folder of its own; what it comes to stands in the index."""
    call, keys = read_note(Path(os.environ["TMPDIR"]) / NOTE)
    recorder = Recorder(folder)
    place = recorder.index.top / f"late-{keys.whole[:16]}"
    place.mkdir(exist_ok=True)
    # By this process's count each name is a new one, and would take the place of what has been built under it.
    os.environ["TORCH_EXTENSIONS_DIR"] = str(place)
    call.arguments.pop("build_directory", None)
    functions: dict[str, Callable[..., Any]] = {}
    _replace(lambda function: functions.setdefault(function.__name__, function))
    recorder.make(lambda: functions[call.function](**call.arguments), call, keys)


def reuse(folder: str, unbuilt: Callable[[], object]) -> None:
    """From now on, answer calls with what the builder met; `unbuilt` is called for one that it has not seen."""
    index, note, before = Index(Path(folder)), Path(os.environ["TMPDIR"]) / NOTE, dict(os.environ)

    def reusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made = BuildCall.of(function, arguments, options)
            keys = made.keys(index.top.parent)
            entry = index.find(keys)
            if entry is not None and "error" in entry:
                raise replayed(entry)
            path = "" if entry is None else os.path.normpath(index.top / entry["path"])
            if entry is None or not Path(path).exists():
                write_note(note, made, keys, _changes(before))
                unbuilt()
                raise RuntimeError("an extension is asked for that was not built before, and nothing is compiled here")
            return _load(path, entry["module"])

        return call

    _replace(reusing)


def replayed(entry: Entry) -> BaseException:
    """The error that a call met, as its nearest type that Python itself has."""
    kind = vars(builtins).get(entry["error"])
    error: BaseException = RuntimeError(entry["text"])
    if isinstance(kind, type) and issubclass(kind, BaseException):
        with contextlib.suppress(TypeError):  # a type that wants more than words
            error = kind(entry["text"])
    error.of_a_build = True  # type: ignore[attr-defined]
    return error


def _changes(before: dict[str, str]) -> dict[str, str | None]:
    """What differs in the environment since; None for what is gone."""
    now = dict(os.environ)
    return {name: now.get(name) for name in now.keys() | before.keys() if now.get(name) != before.get(name)}


def _replace(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    # torch quotes the folders of its headers but not that of its libraries, so no link succeeds in "my projects".
    cpp_extension.TORCH_LIB_PATH = shlex.quote(LIBRARIES)
    for name in ("load_inline", "load"):
        setattr(cpp_extension, name, wrap(getattr(cpp_extension, name)))


def _load(path: str, module: str | None) -> Any:
    if module is None:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        return path
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
