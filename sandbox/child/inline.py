"""`load_inline` and `load` in two halves: the builder records what they made, the worker loads it again.

So a worker needs neither compiler nor ninja, and torch's own code decides how things are built. A call that the
builder did not see (made only inside `forward`, say) is built on the spot by the worker.
"""

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

INDEX = "built.json"


class BuildFailure:
    """Whether a recorded build raised: tells a failed build from a failed import."""

    seen = False


def record(folder: str) -> type[BuildFailure]:
    """From now on, note every finished build in the index; returns the flag of failed ones."""
    index = Path(folder) / INDEX
    built: dict[str, dict[str, Any]] = {}

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            key = _key(function.__name__, arguments, options)
            try:
                result = function(*arguments, **options)
            except BaseException:
                BuildFailure.seen = True
                raise
            path = result if isinstance(result, str) else getattr(result, "__file__", None)
            if path:
                module = None if isinstance(result, str) else result.__name__
                built[key] = {"path": path, "module": module}
                index.write_text(json.dumps(built))
            return result

        return call

    _replace(recording)
    return BuildFailure


def reuse(folder: str) -> None:
    """From now on, answer recorded calls with what the builder made."""
    index = Path(folder) / INDEX
    built = json.loads(index.read_text()) if index.exists() else {}

    def reusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            entry = built.get(_key(function.__name__, arguments, options))
            return function(*arguments, **options) if entry is None else _load(**entry)

        return call

    _replace(reusing)


def _replace(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    for name in ("load_inline", "load"):
        setattr(cpp_extension, name, wrap(getattr(cpp_extension, name)))


def _key(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Taken before the call, which changes the lists that it is given."""
    return hashlib.sha256(repr((name, arguments, sorted(options.items()))).encode()).hexdigest()


def _load(path: str, module: str | None) -> Any:
    if module is None:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        return path
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
