"""A folder of kernels put into a model: `kernels.json` says where each belongs, `PART/candidate.py` is the kernel.

Needs torch alone: packages that are exported carry this file.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.programs.apply.extensions import folder_for_builds, module_of
from kernelwright.programs.apply.guarded import (
    NoPlace,
    Replacement,
    TiedKernel,
    keeps_its_results,
    put_back,
    replacements,
)
from kernelwright.programs.apply.spliced import SplicedReplacement

LOG = logging.getLogger(__name__)
MANIFEST, BUILDS = "kernels.json", "built"
_LEFT: "WeakKeyDictionary[nn.Module, dict[str, str]]" = WeakKeyDictionary()


class Applied(NamedTuple):
    """What stands in a model, and how often it was taken. As text, a line for each."""

    kernels: tuple[Replacement, ...]
    left: dict[str, str]
    """By place, why a kernel that was kept does not stand there."""

    def __str__(self) -> str:
        lines = [_line(one) for one in self.kernels]
        return "\n".join(lines + [f"{name}: no kernel, {why}" for name, why in self.left.items()])


def apply(model: nn.Module, folder: Path, cache: Path) -> nn.Module:
    """The same model with the folder's kernels in their places. `NoPlace` where none of them finds its place.

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
                split.setdefault(module, (name, []))[1].append(kernel.anew())
            else:
                _put(Replacement(name, kernel.anew()), module, left)
    # The innermost first, so that those around them know of them.
    for module, (name, kernels) in sorted(split.items(), key=lambda item: len(list(item[0].modules()))):
        _put(SplicedReplacement(name, *kernels), module, left)
    for name, why in left.items():
        LOG.warning("%s: no kernel, %s", name, why)
    if next(replacements(model), None) is None:
        raise NoPlace(f"no kernel was put into {type(model).__name__}: {_told(left)}")
    _LEFT[model] = left
    return model


def _put(replacement: Replacement, module: nn.Module, left: dict[str, str]) -> None:
    try:
        replacement.put(module)
    except NoPlace as error:
        left[replacement.name] = str(error)


def applied(model: nn.Module) -> Applied:
    """What stands in the model by now."""
    return Applied(tuple(replacements(model)), _LEFT.get(model, {}))


def put_all_back(model: nn.Module) -> nn.Module:
    """The same model as it was before any kernel was put in."""
    for module in list(model.modules()):
        put_back(module)
    return model


def load(folder: Path, part: dict[str, Any], builds: Path) -> TiedKernel:
    """Build or find the kernel, and try it once on inputs like those that it was judged on."""
    candidate, reference = (module_of(folder / part["id"] / name, builds) for name in ("candidate.py", "reference.py"))
    device = part["sizes"][0]["inputs"][0]["tensor"]["device"]

    def make() -> nn.Module:
        with untouched_draws():
            given = reference.get_init_inputs()
            kernel = candidate.ModelNew(**given) if isinstance(given, dict) else candidate.ModelNew(*given)
        return cast(nn.Module, as_judged(kernel, part["dtype"], device))

    with untouched_draws():
        inputs = as_judged(reference.get_inputs(), part["dtype"], device)
    return TiedKernel(part, make, keeps_its_results(make().train(part["training"]), inputs))


@contextlib.contextmanager
def untouched_draws() -> Iterator[None]:
    """A block whose draws the program's own do not feel."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def as_judged(value: Any, dtype: str | None, device: str) -> Any:
    """A model, or inputs, on the device, with what is floating in the dtype that the problem was cast to."""
    wanted = None if dtype is None else getattr(torch, dtype)
    if isinstance(value, nn.Module):
        return value.to(device=device, dtype=wanted)

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(device=device, dtype=wanted if leaf.is_floating_point() else None)

    return pytree.tree_map(moved, value)


def _places(model: nn.Module, part: dict[str, Any], left: dict[str, str]) -> dict[str, nn.Module]:
    """The modules that the part is, by their names in the model; what is not found is told."""
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


def _told(left: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in left.items()) or "nothing was kept that belongs to a module"


def _line(one: Replacement) -> str:
    taken = f"{one.name}: the kernel of {one.part} was taken {one.taken} times"
    total = one.fallbacks.total()
    whys = ", ".join(f"{why} ({count})" for why, count in one.fallbacks.most_common())
    return f"{taken}, the module's own code {total} times: {whys}" if total else taken
