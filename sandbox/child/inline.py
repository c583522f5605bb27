"""`load_inline` and `load` in two halves: the builder records what they made, the worker loads it again.

So a worker needs neither compiler nor ninja, and torch's own code decides how things are built. A call that the
builder did not see (made only inside `forward`, say) is built on the spot by the worker. Nothing in the index names the
work folder, so what one builder made serves a worker in another folder too.
"""

import hashlib
import importlib.util
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

INDEX = "built.json"
LIBRARIES = cpp_extension.TORCH_LIB_PATH
"""Torch's, before `_replace`."""


class BuildFailure:
    """Whether a recorded build raised: tells a failed build from a failed import."""

    seen = False


def record(folder: str) -> type[BuildFailure]:
    """From now on, note every finished build in the index; returns the flag of failed ones."""
    top = Path(folder)
    built: dict[str, dict[str, Any]] = {}
    # There even where nothing is built, so that the end of a build can be told from none.
    (top / INDEX).write_text("{}")

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            key = _key(top, function.__name__, arguments, options)
            try:
                result = function(*arguments, **options)
            except BaseException:
                BuildFailure.seen = True
                raise
            path = result if isinstance(result, str) else getattr(result, "__file__", None)
            if path:
                module = None if isinstance(result, str) else result.__name__
                built[key] = {"path": os.path.relpath(path, top), "module": module}
                (top / INDEX).write_text(json.dumps(built))
            return result

        return call

    _replace(recording)
    return BuildFailure


def reuse(folder: str) -> None:
    """From now on, answer recorded calls with what the builder made."""
    top = Path(folder)
    built = json.loads((top / INDEX).read_text()) if (top / INDEX).exists() else {}

    def reusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            entry = built.get(_key(top, function.__name__, arguments, options))
            path = "" if entry is None else os.path.normpath(top / entry["path"])
            if entry is None or not Path(path).exists():
                # Built in a call: what the builder made is there to be read only.
                os.environ["TORCH_EXTENSIONS_DIR"] = os.environ["TMPDIR"]
                return function(*arguments, **options)
            return _load(path, entry["module"])

        return call

    _replace(reusing)


def _replace(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    # torch quotes the folders of its headers but not that of its libraries, so no link succeeds in "my projects".
    cpp_extension.TORCH_LIB_PATH = shlex.quote(LIBRARIES)
    for name in ("load_inline", "load"):
        setattr(cpp_extension, name, wrap(getattr(cpp_extension, name)))


def _key(top: Path, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Taken before the call, which changes the lists that it is given."""
    call = repr((name, arguments, sorted(options.items()))).replace(str(top.parent), "")
    return hashlib.sha256(call.encode(errors="surrogatepass")).hexdigest()


def _load(path: str, module: str | None) -> Any:
    if module is None:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        return path
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
