"""Capturing a program: a model on some inputs, a piece of a program within `with capturing():`, or a whole script."""

import json
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from kernelwright.problems.problem import ProblemError
from kernelwright.programs.cutting import cut
from kernelwright.programs.record import CAPTURE, PROBLEMS, CapturedProgram, ModuleSeen, OperatorSeen, write_record
from kernelwright.programs.watching import CallWatch, SeenStep, alike, counted_steps, times_of, total_ms, typical_ms
from kernelwright.sandbox.machine import device_name, versions
from kernelwright.sandbox.storage import is_writable

VALUES = "values.safetensors"
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""The format's words for dtypes; tensors of others are left out."""
STEPS = 3
"""Profiled steps, the first of several not counted: it pays for what is done once."""
MOST_LISTED = 30
MUCH_LONGER = 1.5
"""A step that takes this many times as long as another one like it was disturbed."""


class Wishes(NamedTuple):
    out: Path
    program: str
    steps: int = STEPS
    with_values: bool = False
    report: Callable[[str], None] = lambda text: None


_script: list[tuple[Wishes, CallWatch]] = []
"""The script that is being captured, so that `capturing` in it replaces watching all of it."""


def capture(
    model: Callable[..., Any], *inputs: Any, out: Path | str | None = None, steps: int = STEPS, **options: Any
) -> Path:
    """Call a model, or any function, on the inputs a few times and write down where its time goes; the new folder.

    A module in training mode is differentiated too, from ones; its gradients are as before afterwards, its buffers and
    the random state are not. A function is called as it is, so it may be a whole training step. `options` are the
    call's own keyword arguments; `with_values=True` keeps weights and inputs next to the capture.
    """
    with_values = bool(options.pop("with_values", False))
    name = getattr(model, "__name__", type(model).__name__)
    root = model if isinstance(model, torch.nn.Module) else _as_module(model, name)
    wishes = Wishes(new_folder(out), name, steps + 1, with_values)
    trains = isinstance(model, torch.nn.Module) and model.training and torch.is_grad_enabled()
    with _watching(wishes):
        for _ in range(wishes.steps):
            if trains:
                _differentiated(root, inputs, options)
            elif isinstance(model, torch.nn.Module):
                with torch.no_grad():
                    root(*inputs, **options)
            else:
                root(*inputs, **options)
    return wishes.out


@contextmanager
def capturing(out: Path | str | None = None, steps: int = STEPS, with_values: bool = False) -> Iterator[Path]:
    """Capture what runs within; the folder is written at its end.

    In a script that is run by `kernelwright capture` the command's own folder and options hold.
    """
    if _script:
        wishes, whole = _script[-1]
        whole.stop()
    else:
        wishes = Wishes(new_folder(out), Path(sys.argv[0]).name or "program", steps, with_values)
    with _watching(wishes):
        yield wishes.out


@contextmanager
def capturing_script(wishes: Wishes) -> Iterator[None]:
    """Watch all of a script, unless it names itself the calls to be watched."""
    watch = CallWatch(wishes.steps, wishes.report, wishes.with_values)
    with watch:
        _script.append((wishes, watch))
        try:
            yield
        finally:
            _script.pop()
    if not (wishes.out / CAPTURE).exists():
        write_capture(watch, wishes)


@contextmanager
def _watching(wishes: Wishes) -> Iterator[None]:
    with CallWatch(wishes.steps, wishes.report, wishes.with_values) as watch:
        yield
    write_capture(watch, wishes)


def write_capture(watch: CallWatch, wishes: Wishes) -> CapturedProgram:
    """Cut what was watched, and write the folder. `ProblemError` where no module was called."""
    if not watch.steps:
        raise ProblemError(f"{wishes.program} called no nn.Module, so there is nothing to capture; have it call one")
    cutting = cut(watch, wishes.report)
    wishes.out.mkdir(parents=True, exist_ok=True)
    cutting.write(wishes.out / PROBLEMS)
    values = write_values(watch, wishes.out) if wishes.with_values else None
    steps = counted_steps(watch.steps)
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step in steps:
        for name, calls_and_ms in step.times.operators.items():
            seen[name].append(calls_and_ms)
    operators = [
        OperatorSeen(name=name, calls=sum(calls for calls, _ in each), ms=typical_ms(each))
        for name, each in seen.items()
    ]
    is_gpu = any("cuda" in seen.device for kind in watch.kinds.values() for seen in kind.tensors)
    record = CapturedProgram(
        program=wishes.program,
        device=device_name("cuda" if is_gpu else "cpu"),
        is_gpu=is_gpu,
        threads=torch.get_num_threads(),
        versions=versions(),
        steps=len(steps),
        steps_seen=watch.steps_seen,
        program_ms=total_ms(steps),
        modules=tuple(_modules(watch, steps)),
        operators=tuple(sorted(operators, key=lambda one: -one.ms)[:MOST_LISTED]),
        parts=tuple(cutting.parts),
        uncut=tuple(cutting.uncut),
        notes=tuple(notes_of(watch)),
        values=values,
    )
    write_record(wishes.out, record)
    return record


def _modules(watch: CallWatch, steps: list[SeenStep]) -> Iterator[ModuleSeen]:
    for number, times in times_of(steps).items():
        place = watch.places[number]
        kind = watch.kinds[place.kind]
        yield ModuleSeen(
            name=place.name,
            root=place.root,
            class_name=kind.class_name,
            inputs=tuple(kind.tensors),
            training=kind.training,
            calls=times.calls,
            forward_ms=times.forward_ms,
            backward_ms=times.backward_ms,
            operators=times.operators,
        )


def write_values(watch: CallWatch, folder: Path) -> str:
    """Write `weights/ROOT/NAME` and `inputs/CLASS/NUMBER/LEAF`; the file's name within the folder.

    The format: eight bytes with the length of a JSON header, the header, then all bytes in that order.
    """
    found: dict[str, torch.Tensor] = {}
    for root, module in watch.roots():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            found[f"weights/{root}/{name}"] = tensor
    for number, kind in enumerate(watch.kinds.values()):
        for leaf, tensor in kind.kept.items():
            found[f"inputs/{type(kind.module).__name__}/{number}/{leaf}"] = tensor
    tensors = {name: tensor for name, tensor in found.items() if str(tensor.dtype)[6:] in NAMES}
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        dtype, shape = NAMES[str(tensor.dtype)[6:]], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / VALUES).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            if plain.numel():
                file.write(plain.view(torch.uint8).numpy().tobytes())
    return VALUES


def notes_of(watch: CallWatch) -> Iterator[str]:
    if len(watch.steps) == 1:
        yield "only one step was seen, so its time holds what is done once; capture two or more for better figures"
    low, high = max(
        ((min(ms), max(ms)) for ms in alike(counted_steps(watch.steps))), key=lambda ends: ends[1] / max(ends[0], 1e-9)
    )
    if high > MUCH_LONGER * low:
        yield (
            f"steps that do the same took {low:.3g} to {high:.3g} ms, so shares are rough; "
            "capture again on an idle machine, with more --steps"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield "the program is distributed: this is one process of it, and what it waits for others is in its time"
    if watch.compiled:
        yield "the program calls torch.compile itself: what runs inside a compiled module was not seen"


def _differentiated(model: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    kept = {parameter: parameter.grad for parameter in model.parameters()}
    leaves = pytree.tree_leaves(model(*inputs, **options))
    roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(leaf) for leaf in roots])
    for parameter, gradient in kept.items():
        parameter.grad = gradient


def _as_module(function: Callable[..., Any], name: str) -> torch.nn.Module:
    """Wrap a function as the `forward` of a module, so that its own operators can be cut out as well."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    made = type(name.strip("<>"), (torch.nn.Module,), {"forward": forward, "__module__": "program"})
    module = made()
    assert isinstance(module, torch.nn.Module), "it was made as one"
    return module.train(torch.is_grad_enabled())


def new_folder(out: Path | str | None) -> Path:
    """Return `out`, or a new folder under `captures` named by the time. `ProblemError` where it cannot be made."""
    folder = Path(out) if out is not None else Path("captures") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    if (folder / CAPTURE).exists():
        raise ProblemError(f"{folder} holds a capture already; name another folder")
    if not is_writable(folder):
        raise ProblemError(f"the folder {folder} cannot be made; name another")
    return folder
