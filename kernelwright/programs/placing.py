"""A folder of kernels put into a model: `kernels.json` says where each belongs, `PART/candidate.py` is the kernel.

Needs torch alone: packages that are exported carry this file.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils import cpp_extension

from kernelwright.programs.guarded import (
    NoPlace,
    Replacement,
    SplicedReplacement,
    TiedKernel,
    keeps_its_results,
    put_back,
    replacements,
)

LOG = logging.getLogger(__name__)
MANIFEST, BUILDS = "kernels.json", "built"
NOTE = "built.json"
PLATFORM = "platform.json"
INCLUDED = "CPLUS_INCLUDE_PATH"
"""Headers' folders that g++ and nvcc search after those of the command line."""
INSTRUCTIONS = ("avx", "amx", "fma", "bmi", "f16c", "sse4", "sve", "asimd", "popcnt", "gfni", "vaes", "sha_ni")
"""Prefixes of processor flags that `-march=native` may use."""
_LEFT: "WeakKeyDictionary[nn.Module, dict[str, str]]" = WeakKeyDictionary()


def here() -> dict[str, Any]:
    flags: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags = [flag for flag in line.partition(":")[2].split() if flag.startswith(INSTRUCTIONS)]
                break
    abi = [sys.implementation.cache_tag, platform.machine(), torch.__version__, str(torch.version.cuda)]
    return {"abi": abi, "flags": sorted(flags)}


def fits(folder: Path) -> bool:
    """Return whether the builds there run on this machine: same torch and Python, and no instruction is missing."""
    try:
        built = json.loads((folder / PLATFORM).read_text(encoding="utf-8"))
    except OSError:
        return False
    now = here()
    return bool(built["abi"] == now["abi"] and set(built["flags"]) <= set(now["flags"]))


def folder_for_builds(shipped: Path, cache: Path) -> Path:
    """Return the folder to search and build extensions in: the shipped one where it fits, else one of the cache."""
    if fits(shipped):
        return shipped
    kind = hashlib.sha256(json.dumps(here()).encode()).hexdigest()[:16]
    return started(cache / kind)


def started(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / PLATFORM, here())
    return folder


def module_of(source: Path, builds: Path) -> ModuleType:
    """Run a source as a module; its builds are found in `builds`, or kept there."""
    name = f"_{source.parent.name}_{source.stem}_{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(source)
    sys.modules[name] = module  # for code that looks a class up by its module
    before = {name: getattr(cpp_extension, name) for name in ("load_inline", "load")}
    try:
        for name, function in before.items():
            setattr(cpp_extension, name, _looking(function, builds))
        exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), module.__dict__)
    finally:
        for name, function in before.items():
            setattr(cpp_extension, name, function)
    return module


def _looking(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Wrap torch's function for extensions, to look into the folder first."""

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
    """Put the headers of the package nvidia-cutlass, where it is, on the compilers' path, as in the jail."""
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
    """Replace files by a digest of their content."""
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


class Applied(NamedTuple):
    kernels: tuple[Replacement, ...]
    left: dict[str, str]
    """By place, why a kernel that was kept is not there."""

    def __str__(self) -> str:
        lines = []
        for one in self.kernels:
            line, total = f"{one.name}: the kernel of {one.part} was taken {one.taken} times", one.fallbacks.total()
            whys = ", ".join(f"{why} ({count})" for why, count in one.fallbacks.most_common())
            lines.append(f"{line}, the module's own code {total} times: {whys}" if total else line)
        return "\n".join(lines + [f"{name}: no kernel, {why}" for name, why in self.left.items()])


def apply(model: nn.Module, folder: Path, cache: Path) -> nn.Module:
    """Put the folder's kernels into the model, in place. `NoPlace` where none of them finds its place.

    Where nothing was built for this machine, extensions are built into `cache`, once.
    """
    put_all_back(model)
    builds = folder_for_builds(folder / BUILDS, cache)
    left: dict[str, str] = {}
    split: dict[nn.Module, tuple[str, list[TiedKernel]]] = {}
    for part in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["parts"]:
        places = _places(model, part, left)
        if not places:
            continue
        kernel = load(folder, part, builds)
        for name, module in places.items():
            if part["kind"] == "run":
                split.setdefault(module, (name, []))[1].append(kernel.copy())
            else:
                _put(Replacement(name, kernel.copy()), module, left)
    # The innermost first, so that those around them know of them.
    for module, (name, kernels) in sorted(split.items(), key=lambda item: len(list(item[0].modules()))):
        _put(SplicedReplacement(name, *kernels), module, left)
    for name, why in left.items():
        LOG.warning("%s: no kernel, %s", name, why)
    if next(replacements(model), None) is None:
        reasons = "; ".join(f"{name}: {why}" for name, why in left.items())
        raise NoPlace(
            f"no kernel was put into {type(model).__name__}: {reasons or 'nothing was kept that belongs to a module'}"
        )
    _LEFT[model] = left
    return model


def _put(replacement: Replacement, module: nn.Module, left: dict[str, str]) -> None:
    try:
        replacement.put(module)
    except NoPlace as error:
        left[replacement.name] = str(error)


def applied(model: nn.Module) -> Applied:
    """List the kernels of a model, how often each was taken, and why where it was not. As text, a line each."""
    return Applied(tuple(replacements(model)), _LEFT.get(model, {}))


def put_all_back(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        put_back(module)
    return model


def load(folder: Path, part: dict[str, Any], builds: Path) -> TiedKernel:
    """Build or find the kernel and try it once on inputs as judged. The program's own draws stay as they are."""
    candidate, reference = (module_of(folder / part["id"] / name, builds) for name in ("candidate.py", "reference.py"))
    device = part["sizes"][0]["inputs"][0]["tensor"]["device"]

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            given = reference.get_init_inputs()
            kernel = candidate.ModelNew(**given) if isinstance(given, dict) else candidate.ModelNew(*given)
        return cast(nn.Module, as_judged(kernel, part["dtype"], device))

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        inputs = as_judged(reference.get_inputs(), part["dtype"], device)
    return TiedKernel(part, make, keeps_its_results(make().train(part["training"]), inputs))


def as_judged(value: Any, dtype: str | None, device: str) -> Any:
    """Move a model or inputs to the device, and cast floating values to the problem's dtype."""
    wanted = None if dtype is None else getattr(torch, dtype)
    if isinstance(value, nn.Module):
        return value.to(device=device, dtype=wanted)
    return pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf.to(device=device, dtype=wanted if leaf.is_floating_point() else None), value
    )


def _places(model: nn.Module, part: dict[str, Any], left: dict[str, str]) -> dict[str, nn.Module]:
    """Return the modules that the part is, by their names in the model; those that are not found go into `left`."""
    found: dict[str, nn.Module] = {}
    for root, name in part["places"]:
        tops = [(at, top) for at, top in model.named_modules() if type(top).__name__ == root.partition(" ")[0]]
        if not tops:
            left[f"{root}.{name}"] = f"the model has no {root}, which was captured"
        for at, top in tops:
            full = ".".join(filter(None, (at, name)))
            module = dict(top.named_modules()).get(name)
            if module is None or type(module).__name__ != part["class_name"].rpartition(".")[2]:
                left[full] = f"the model has no {part['class_name'].rpartition('.')[2]} there"
            elif all(module is not other for other in found.values()):
                found[full or root] = module
    return found
