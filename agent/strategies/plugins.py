"""A function in a file of the user's own, named as `path/to/file.py:function`."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any


def function_in(name: str, kind: str, error: type[Exception], takes: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:function` names. Raises `error` with one sentence, in which `kind` is what the
    function is (`strategy`) and `takes` are its arguments.
    """
    text, _, function_name = name.rpartition(":")
    path = Path(text)
    if not path.is_file():
        raise error(f"no {kind} file {path}; give it as path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise error(f"{path} is no Python file; give the {kind} as path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        raise error(f"{path} cannot be loaded ({type(fault).__name__}: {fault}); correct it") from fault
    function = getattr(module, function_name, None)
    if not callable(function):
        raise error(f"{path} defines no function {function_name!r}; name one that takes {takes}")
    found: Callable[..., Any] = function
    return found
