"""A user's program run once, and the calls of its outermost modules kept, so that they can be made again."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

MOST_CALLS = 8
"""Calls of different kinds; those beyond are like some of these in most programs."""
SEED = 0


class KeptCall:
    """One call of an outermost module, with what it was given and under which switches of torch's."""

    def __init__(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.root = root
        self.count = 1
        """Calls of this kind in the program."""
        self.backward = False
        """Whether gradients flowed back through it."""
        self.arguments = pytree.tree_map(_own, (args, kwargs))
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = {kind: torch.get_autocast_dtype(kind) for kind in _kinds() if torch.is_autocast_enabled(kind)}

    def outputs(
        self, run: Callable[..., Any], arguments: Any = None, seeded: bool = True
    ) -> tuple[Any, list[torch.Tensor | None]]:
        """Make the call again, with `run` in the root's place; its outputs, and the weights' gradients if any flowed.

        What it draws is the same each time, unless it is not `seeded` here (which takes as long as a few operators).
        Gradients come from ones in place of what the program's loss would send.
        """
        args, kwargs = arguments or self.arguments
        if seeded:
            torch.manual_seed(SEED)
        with self._switches():
            outputs = run(*args, **kwargs)
            if not self.backward:
                return outputs, []
            flowing = [
                one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad
            ]
            torch.autograd.backward(flowing, [torch.ones_like(one) for one in flowing])
            return outputs, [parameter.grad for parameter in self.root.parameters()]

    @property
    def is_on_device(self) -> bool:
        """Whether weights or arguments lie on a GPU."""
        leaves = (*self.root.parameters(), *pytree.tree_leaves(self.arguments))
        return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves)

    def forget_gradients(self) -> None:
        """As before the call."""
        for leaf in (*self.root.parameters(), *pytree.tree_leaves(self.arguments)):
            if isinstance(leaf, torch.Tensor):
                leaf.grad = None

    @contextlib.contextmanager
    def _switches(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._gradients))
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield


def calls_of(script: Path, arguments: Sequence[str]) -> list[KeptCall]:
    """Run the script as a program of its own; the calls of its outermost modules, one of each kind.

    It stays this process's `__main__`: torch.compile looks up there what the script's functions name.
    """
    kept: dict[Any, KeptCall] = {}
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.parent)]
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__file__ = str(script)
    torch.manual_seed(SEED)
    try:
        with _kept_in(kept), contextlib.suppress(SystemExit):
            exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), main.__dict__)
    finally:
        sys.argv, sys.path[:] = before
    return list(kept.values())


@contextlib.contextmanager
def _kept_in(kept: dict[Any, KeptCall]) -> Iterator[None]:
    """Within it, note each outermost call of this thread. `__call__` itself is replaced: hooks change torch's ways."""
    original, inside, thread = nn.Module.__call__, [False], threading.get_ident()

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inside[0] or threading.get_ident() != thread or torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        inside[0] = True
        try:
            call = _noted(kept, module, args, kwargs)
            outputs = original(module, *args, **kwargs)
        finally:
            inside[0] = False
        if call is not None:
            for one in _flowing(outputs):
                one.register_hook(lambda _: setattr(call, "backward", True))  # type: ignore[no-untyped-call]
        return outputs

    nn.Module.__call__ = __call__  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def _noted(kept: dict[Any, KeptCall], module: nn.Module, args: Any, kwargs: Any) -> KeptCall | None:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = id(module), str(structure), tuple(map(_kind, leaves)), module.training, torch.is_grad_enabled()
    if key in kept:
        kept[key].count += 1
        return kept[key]
    if len(kept) == MOST_CALLS:
        return None
    kept[key] = KeptCall(module, args, kwargs)
    return kept[key]


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf)


def _flowing(outputs: Any) -> list[torch.Tensor]:
    """Those that gradients can come back through."""
    return [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad]


def _own(leaf: Any) -> Any:
    """A copy of a tensor, which the program may write into later; one with gaps or overlaps stays, for its layout."""
    if not isinstance(leaf, torch.Tensor) or not torch.ops.aten.is_non_overlapping_and_dense(leaf):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _kinds() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
