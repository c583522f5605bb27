"""Candidates as classes, with extensions that were built before, or are built once and kept.

Needs torch alone: packages that are exported carry this file. The extensions that a source asks torch for
(`load_inline` and `load`) lie in a folder, by what was asked; a build is used on machines like the one that made it.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

NOTE = "built.json"
PLATFORM = "platform.json"
INCLUDED = "CPLUS_INCLUDE_PATH"
"""Where g++ and nvcc look for headers, behind what a command line names."""
INSTRUCTIONS = ("avx", "amx", "fma", "bmi", "f16c", "sse4", "sve", "asimd", "popcnt", "gfni", "vaes", "sha_ni")
"""How flags of processors begin that `-march=native` may use."""


def here() -> dict[str, Any]:
    """What a build depends on, of this machine."""
    flags: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags = [flag for flag in line.partition(":")[2].split() if flag.startswith(INSTRUCTIONS)]
                break
    abi = [sys.implementation.cache_tag, platform.machine(), torch.__version__, str(torch.version.cuda)]
    return {"abi": abi, "flags": sorted(flags)}


def fits(folder: Path) -> bool:
    """Whether what was built there runs on this machine: the same torch and Python, and no instruction is lacking."""
    try:
        built = json.loads((folder / PLATFORM).read_text(encoding="utf-8"))
    except OSError:
        return False
    now = here()
    return bool(built["abi"] == now["abi"] and set(built["flags"]) <= set(now["flags"]))


def folder_for_builds(shipped: Path, cache: Path) -> Path:
    """Where extensions are looked for and built: what ships, where it fits, else a folder of this machine's kind."""
    if fits(shipped):
        return shipped
    kind = hashlib.sha256(json.dumps(here()).encode()).hexdigest()[:16]
    return started(cache / kind)


def started(folder: Path) -> Path:
    """The folder, for builds of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / PLATFORM, here())
    return folder


def module_of(source: Path, builds: Path) -> ModuleType:
    """Run a source as a module; what it builds is found in `builds`, or kept there."""
    name = f"_{source.parent.name}_{source.stem}_{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(source)
    sys.modules[name] = module  # for what looks a class up by its module
    with _extensions_in(builds):
        exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), module.__dict__)
    return module


@contextlib.contextmanager
def _extensions_in(folder: Path) -> Iterator[None]:
    """Whoever imports torch's functions for extensions in this block gets those that look into the folder first."""
    before = {name: getattr(cpp_extension, name) for name in ("load_inline", "load")}
    try:
        for name, function in before.items():
            setattr(cpp_extension, name, _looking(function, folder))
        yield
    finally:
        for name, function in before.items():
            setattr(cpp_extension, name, function)


def _looking(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        given = dict(inspect.signature(function).bind(*args, **options).arguments)
        given.pop("build_directory", None)
        asked = [(name, _content(value)) for name, value in sorted(given.items()) if name != "verbose"]
        place = folder / hashlib.sha256(repr((function.__name__, asked)).encode()).hexdigest()[:16]
        with contextlib.suppress(OSError):
            return _loaded(place, json.loads((place / NOTE).read_text(encoding="utf-8")))
        place.mkdir(parents=True, exist_ok=True)
        with _cutlass_included():
            built = function(**given, build_directory=str(place))
        path = built if isinstance(built, str) else built.__file__
        _write(place / NOTE, {"file": Path(path).name, "module": None if isinstance(built, str) else built.__name__})
        return built

    return call


@contextlib.contextmanager
def _cutlass_included() -> Iterator[None]:
    """The headers of the package nvidia-cutlass, where it is, lie on the compilers' path meanwhile, as in the jail."""
    spec, before = importlib.util.find_spec("cutlass_library"), os.environ.get(INCLUDED)
    if spec is not None and spec.origin is not None:
        headers = Path(spec.origin).parent / "source" / "include"
        os.environ[INCLUDED] = f"{before}{os.pathsep}{headers}" if before else str(headers)
    try:
        yield
    finally:
        os.environ.pop(INCLUDED, None)
        if before is not None:
            os.environ[INCLUDED] = before


def _content(value: Any) -> Any:
    """The same with files by what is in them."""
    if isinstance(value, list | tuple):
        return [_content(one) for one in value]
    if isinstance(value, str | os.PathLike) and os.path.isfile(value):  # noqa: PTH113 - a source text is no path
        return hashlib.sha256(Path(value).read_bytes()).hexdigest()
    return value


def _loaded(place: Path, built: dict[str, Any]) -> Any:
    path = str(place / built["file"])
    if built["module"] is None:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
        return path
    spec = importlib.util.spec_from_file_location(built["module"], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(path: Path, value: dict[str, Any]) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(path)
