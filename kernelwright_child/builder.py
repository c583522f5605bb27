"""The builder, which imports and constructs the candidate once so that its extensions compile; and their replay.

It gets no inputs and no weights, and writes to the work folder. It records the result of each call of `load_inline`
and `load`. A worker replays them: it compiles nothing and needs neither compiler nor ninja. torch's own code builds.
A call that the builder did not see (inside `forward`, say) is noted by the worker, which then waits for its end;
another builder makes the call, and a new worker starts. The index does not name the work folder, so a build serves
workers in other folders too.
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
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import cpp_extension

from kernelwright_child import compiling, wire
from kernelwright_child.models import construct, run_source, shared_tensors
from kernelwright_child.wire import Message

IGNORED = ("name", "build_directory", "verbose")
"""Arguments that may differ between processes, by a time or a random number, without changing the build."""
MADE_UP = re.compile(r"/tmp/tmp\w{8}")
"""A name of `tempfile` within the work folder."""


class Keys(NamedTuple):
    """Digests of a call: of all its arguments, and without the ignored ones."""

    whole: str
    essence: str


class BuildCall(NamedTuple):
    function: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> "BuildCall":
        """Bind the arguments to the function's parameters; raises `TypeError` as the call itself would."""
        return cls(function.__name__, dict(inspect.signature(function).bind(*arguments, **options).arguments))

    def keys(self, work_folder: Path) -> Keys:
        """Compute the keys before the call, which changes its argument lists.

        A file counts by its content, and the work folder is left out: both differ in another process.
        """
        essence = [(name, _essence(value)) for name, value in self.arguments.items() if name not in IGNORED]
        given = _digest(MADE_UP.sub("", f"{self.function} {sorted(essence)!r}".replace(str(work_folder), "")))
        exact = repr(sorted(self.arguments.items())).replace(str(work_folder), "")
        return Keys(_digest(f"{exact} {given}"), given)


def write_note(path: Path, call: BuildCall, keys: Keys, environment: dict[str, str | None]) -> None:
    """Note a call with the files in its arguments and the candidate's changes of the environment.

    Raises `WireError` for arguments that are not plain values.
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
    """Return the call of a note; set its environment and restore its missing files."""
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
    if isinstance(value, str | os.PathLike) and os.path.isfile(value):
        return hashlib.sha256(Path(value).read_bytes()).hexdigest()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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
    return [value] if isinstance(value, str) and os.path.isfile(value) else []


INDEX = "built.json"
NOTE = "unbuilt.json"
"""The call that a worker has noted, in the folder for temporary files."""
LIBRARIES = cpp_extension.TORCH_LIB_PATH
HEAD_CHARACTERS, TAIL_CHARACTERS = 20_000, 4000
"""The kept parts of an error's text."""
SHOWN_CHARACTERS = 8000
Entry = dict[str, Any]
"""Result of a call: `path` and `module` (None for a library), or `extension`, `error` (its type) and `text`."""


class Index:
    def __init__(self, top: Path) -> None:
        self.top = top
        self._path = top / INDEX
        self.entries: dict[str, Entry] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def find(self, keys: Keys) -> Entry | None:
        return self.entries.get(keys.whole) or self.entries.get(keys.essence)

    def add(self, keys: Keys, entry: Entry) -> None:
        self.entries |= dict.fromkeys(keys, entry)
        self.save()

    def save(self) -> None:
        """Replace the file, which another user may own."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.entries))
        new.replace(self._path)


class Recorder:
    def __init__(self, folder: str) -> None:
        self.index = Index(Path(folder))
        self.failures: list[Entry] = []
        self.index.save()  # an index without entries shows that the build has ended

    def make(self, build: Callable[[], Any], call: BuildCall, keys: Keys) -> Any:
        """Return the call's result or raise its error; a failed call is not repeated."""
        known = self.index.entries.get(keys.whole, {})
        if "error" in known:
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

    def hidden_failure(self, error: BaseException) -> str:
        """Return the text of the first failure, where the given error does not contain it."""
        said = "".join(str(one) for one in wire.causes(error))
        missing = [entry["text"] for entry in self.failures if entry["text"][:SHOWN_CHARACTERS] not in said]
        return missing[0][:SHOWN_CHARACTERS] if missing else ""


def record(folder: str) -> Recorder:
    """Record the result of every later call in the index."""
    recorder = Recorder(folder)

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made = BuildCall.of(function, arguments, options)
            keys = made.keys(recorder.index.top.parent)
            return recorder.make(lambda: function(*arguments, **options), made, keys)

        return call

    _replace(recording)
    return recorder


def reuse(folder: str, unbuilt: Callable[[], object]) -> None:
    """Answer later calls with the builder's results; call `unbuilt` for one that it has not seen."""
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
                now = dict(os.environ)
                changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
                write_note(note, made, keys, {name: now.get(name) for name in changed})
                unbuilt()
                raise RuntimeError("an extension is requested that was not built before, and nothing is compiled here")
            return _load(path, entry["module"])

        return call

    _replace(reusing)


def replayed(entry: Entry) -> BaseException:
    """Return the error of a call as the nearest built-in type."""
    kind = vars(builtins).get(entry["error"])
    error: BaseException = RuntimeError(entry["text"])
    if isinstance(kind, type) and issubclass(kind, BaseException):
        with contextlib.suppress(TypeError):  # a type that needs more arguments
            error = kind(entry["text"])
    error.of_a_build = True  # type: ignore[attr-defined]
    return error


def _replace(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    # torch quotes the folders of its headers but not that of its libraries, so links fail in a folder "my projects".
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


def build(message: Message, fds: list[int]) -> Message:
    """Import and construct the candidate; an error says whether a compilation raised it.

    The message's `shortcuts` are a plan for `kernelwright_child.compiling`.
    """
    compiling.install_shortcuts(message.get("shortcuts", {}), os.environ["HOME"])
    recorder = record(message["built"])
    try:
        tensors = shared_tensors(fds[0], message["specs"]) if fds else []
        namespace = run_source(message["source"], "candidate")
        construct(namespace[message["entry"]], wire.unpack(message["arguments"], tensors))
    except BaseException as error:
        answer = wire.failure(error, compiling=bool(recorder.failures))
        beside = recorder.hidden_failure(error)
        return answer | {"log": f"{beside}\n{answer['log']}"} if beside else answer
    return {}


def build_noted(message: Message, fds: list[int]) -> Message:
    """Make the call that a worker has noted. Its error goes into the index, and the candidate gets it later."""
    compiling.install_shortcuts(message.get("shortcuts", {}), os.environ["HOME"])
    with contextlib.suppress(BaseException):
        _make_noted(message["built"])
    return {}


def _make_noted(folder: str) -> None:
    call, keys = read_note(Path(os.environ["TMPDIR"]) / NOTE)
    recorder = Recorder(folder)
    place = recorder.index.top / f"late-{keys.whole[:16]}"
    place.mkdir(exist_ok=True)
    # This process counts each name as new, and would overwrite an earlier build of that name.
    os.environ["TORCH_EXTENSIONS_DIR"] = str(place)
    call.arguments.pop("build_directory", None)
    functions: dict[str, Callable[..., Any]] = {}
    _replace(lambda function: functions.setdefault(function.__name__, function))
    recorder.make(lambda: functions[call.function](**call.arguments), call, keys)


def main() -> None:
    """Serve on the inherited channel, then leave without running the candidate's exit handlers."""
    wire.serve(socket.socket(fileno=int(sys.argv[1])), {"build": build, "build noted": build_noted})
    os._exit(0)
