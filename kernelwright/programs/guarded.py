"""Kernels in the place of modules, behind guards, with the module's own code as the way out.

Needs torch alone: packages that are exported carry this file. A module stays the object that it was, with its names,
parameters and hooks; only its class becomes one derived from its own. A copy or a pickle of it is of the old class.
"""

import ast
import copyreg
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

ALIGNED = 64
"""Bytes: torch gives memory on such places, and a kernel may load vectors from there."""


class CallSize(NamedTuple):
    """One kind of calls that a kernel was judged for."""

    inputs: tuple[tuple[int, dict[str, Any]], ...]
    """For each of the kernel's arguments which leaf of (args, kwargs) it is, and the tensor that was seen there."""
    call: pytree.TreeSpec
    others: dict[int, Any]
    """The leaves that are no tensors."""
    result: pytree.TreeSpec
    result_leaves: tuple[int | None, ...]

    @classmethod
    def of(cls, size: dict[str, Any]) -> "CallSize":
        call = pytree.treespec_loads(size["call"])
        plain = _of_tensors(call.num_leaves)
        return cls(
            inputs=tuple((one["leaf"], one["tensor"]) for one in size["inputs"]),
            call=plain if call == plain else call,
            others={int(leaf): ast.literal_eval(text) for leaf, text in size["other_leaves"].items()},
            result=pytree.treespec_loads(size["result"]),
            result_leaves=tuple(size["result_leaves"]),
        )

    def why_not(self, leaves: list[Any]) -> str:
        for leaf, value in self.others.items():
            if type(leaves[leaf]) is not type(value) or leaves[leaf] != value:
                return "other arguments"
        for leaf, seen in self.inputs:
            if why := differs(leaves[leaf], seen):
                return why
        return ""

    def put_together(self, outputs: Any) -> Any:
        if self.result.is_leaf():
            return outputs
        each = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return pytree.tree_unflatten([None if i is None else each[i] for i in self.result_leaves], self.result)


def differs(value: Any, seen: dict[str, Any]) -> str:
    """In what a tensor is another than the one that was seen; empty where in nothing."""
    if type(value) not in (torch.Tensor, nn.Parameter):
        return "other arguments"
    if value.shape != tuple(seen["shape"]):
        return "another shape"
    if str(value.dtype) != f"torch.{seen['dtype']}":
        return "another dtype"
    if value.device.type != torch.device(seen["device"]).type:
        return "another device"
    strides = zip(value.shape, value.stride(), seen["stride"], strict=True)
    moved = value.stride() != tuple(seen["stride"]) and any(size > 1 and one != other for size, one, other in strides)
    if moved or value.is_conj() or value.is_neg():
        return "another layout in memory"
    return "memory that is not aligned" if value.numel() and value.data_ptr() % ALIGNED else ""


@functools.cache
def _of_tensors(count: int) -> pytree.TreeSpec:
    """The structure of a call with so many arguments, each a leaf. The same object each time, so `is` compares it."""
    return pytree.tree_structure(((0,) * count, {}))


def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a call. torch's way takes longer than a small kernel, and most calls are of tensors alone."""
    if not kwargs and all(type(one) is torch.Tensor for one in args):
        return list(args), _of_tensors(len(args))
    return pytree.tree_flatten((args, kwargs))


LOG = logging.getLogger(__name__)
Make = Callable[[], nn.Module]


class NoPlace(ValueError):
    """A kernel can not stand where it should; the module stays as it was."""


class TiedKernel:
    def __init__(self, part: dict[str, Any], make: Make, copies: bool) -> None:
        """`part`: its record; `make` gives a kernel with weights of its own.

        `copies`: whether it keeps the memory of its results, so that they are copied.
        """
        self.part, self._make, self._copies = part, make, copies
        steps = {name: own.split(".") for name, own in part["state"].items()}
        self._paths = {name: (path[:-1], path[-1]) for name, path in steps.items()}
        self._written = [place for place, name in enumerate(part["state"]) if name in part["written"]]
        self._made: tuple[Any, nn.Module] | None = None

    def anew(self, part: dict[str, Any] | None = None) -> "TiedKernel":
        return TiedKernel(part or self.part, self._make, self._copies)

    def call(self, module: nn.Module, inputs: Sequence[Any]) -> Any:
        outputs = self.over(module)(*inputs)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, outputs) if self._copies else outputs

    def over(self, module: nn.Module) -> nn.Module:
        """The kernel with the module's own weights; a new one where these have changed, since it may keep its own."""
        state = self._state(module)
        try:
            key = [(id(tensor), tensor.data_ptr(), tensor._version) for tensor in state.values()]
        except RuntimeError:  # one of inference mode has no version
            key = [(id(tensor), tensor.data_ptr(), 0) for tensor in state.values()]
        for place in self._written:
            key[place] = (*key[place][:2], 0)
        if self._made is None or self._made[0] != key:
            kernel = self._make().train(self.part["training"])
            _tie(kernel, state)
            self._made = key, kernel
        return self._made[1]

    def _state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, (path, last) in self._paths.items():
            owner = module
            try:
                for step in path:
                    owner = owner._modules[step]  # type: ignore[assignment]
                own = owner._parameters if last in owner._parameters else owner._buffers
                found[name] = own[last]  # type: ignore[assignment]
            except KeyError:  # what a parametrization computes, for instance
                try:
                    found[name] = getattr(module.get_submodule(".".join(path)), last)
                except AttributeError:
                    raise NoPlace(f"the module has no {'.'.join([*path, last])}") from None
        return found


class Replacement:
    """A kernel in the place of one module, and how often it was taken."""

    def __init__(self, name: str, *kernels: TiedKernel) -> None:
        """`name`: of the module, within the model."""
        self.name, self.kernels = name, kernels
        self.part = "+".join(kernel.part["id"] for kernel in kernels)
        self.is_on = True
        self.taken = 0
        self.fallbacks: Counter[str] = Counter()
        """How often the module's own code was taken, by the reason."""
        self.own: type[nn.Module] = nn.Module
        self.module: nn.Module = nn.Module()
        """That it stands in for."""
        self._inside: list[nn.Module] = []
        self._training: bool = kernels[0].part["training"]
        self._gradients = all(kernel.part["direction"] != "forward" for kernel in kernels)
        self._sizes = [CallSize.of(size) for size in kernels[0].part["sizes"] if size["call"]]

    def put(self, module: nn.Module) -> None:
        """Stand in for the module from now on. `NoPlace` where its state is not what the part has."""
        if "forward" in module.__dict__:
            raise NoPlace("its forward was replaced by somebody else")
        self._inside = [one for one in module.modules() if one is not module]
        for kernel in self.kernels:
            kernel.over(module)
        self.own, self.module = type(module), module
        self._derived = _derived(self)
        self.stand(True)

    def stand(self, here: bool) -> None:
        """Stand in for the module, or let it be of its own class; the kernel is kept."""
        self.module.__class__ = self._derived if here else self.own

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = flat(args, kwargs)
        why = self._circumstances(module, leaves)
        if not why:
            try:
                result = self._result(module, leaves, structure)
                self.taken += 1
                return result
            except NoPlace as error:
                why = str(error)
            except Exception as error:  # whatever it is, the program has another way
                why, self.is_on = f"it raised {type(error).__name__}: {error}", False
        if why not in self.fallbacks:
            LOG.warning("%s: the module's own code is taken instead of the kernel of %s: %s", self.name, self.part, why)
        self.fallbacks[why] += 1
        return self.own.forward(module, *args, **kwargs)

    def _result(self, module: nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        """What the module would return. `NoPlace` where the kernel was not judged for this call."""
        why = "other arguments"
        for size in self._sizes:
            if (size.call is structure or size.call == structure) and not (why := size.why_not(leaves)):
                outputs = self.kernels[0].call(module, [leaves[leaf] for leaf, _ in size.inputs])
                return size.put_together(outputs)
        raise NoPlace(why)

    def _circumstances(self, module: nn.Module, leaves: list[Any]) -> str:
        if not self.is_on:
            return "switched off"
        if module.training != self._training:
            return "training mode" if module.training else "evaluation mode"
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        wanted = not self._gradients and torch.is_grad_enabled()
        if wanted and any(one.requires_grad for one in (*tensors, *module.parameters())):
            return "gradients are wanted, and the kernel was judged forward only"
        if tensors and torch.is_autocast_enabled(tensors[0].device.type):
            return "autocast"
        for one in self._inside:
            if one._forward_hooks or one._forward_pre_hooks or one._backward_hooks or one._backward_pre_hooks:
                return "hooks on a module inside"
        return _traced() or (_stream(tensors[0]) if tensors else "")


def put_back(module: nn.Module) -> None:
    replacement = replacement_of(module)
    if replacement is not None:
        module.__class__ = replacement.own


def replacement_of(module: nn.Module) -> Replacement | None:
    return vars(type(module)).get("_replacement")


def replacements(model: nn.Module) -> Iterator[Replacement]:
    for module in model.modules():
        if (found := replacement_of(module)) is not None:
            yield found


def keeps_its_results(kernel: nn.Module, inputs: list[Any]) -> bool:
    """Whether two calls give the same memory, so that the second would overwrite what the first has given."""
    with torch.no_grad():
        results = [pytree.tree_leaves(kernel(*inputs)) for _ in range(2)]  # both alive, so neither's memory is free
    first, second = (
        {one.untyped_storage().data_ptr() for one in each if isinstance(one, torch.Tensor)} for each in results
    )
    return bool((first & second) - {0})


def _derived(replacement: Replacement) -> type[nn.Module]:
    own = replacement.own

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return opaque(self, args, kwargs)  # a break in the graph
        return replacement.call(self, args, kwargs)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        _, _, *rest = cast(tuple[Any, ...], own.__reduce_ex__(self, protocol))
        return copyreg._reconstructor, (own, object, None), *rest  # type: ignore[attr-defined]

    opaque = torch.compiler.disable(replacement.call)  # type: ignore[no-untyped-call]
    members = {"forward": forward, "__reduce_ex__": reduced, "_replacement": replacement}
    return type(own.__name__, (own,), members | {"__module__": own.__module__, "__doc__": own.__doc__})


def _traced() -> str:
    functorch = torch._C._functorch.peek_interpreter_stack() is not None
    dispatch = torch._C._len_torch_dispatch_stack() > 0
    dual = torch.autograd.forward_ad._current_level >= 0
    jit = torch._C._get_tracing_state() is not None
    return "somebody traces the operators" if functorch or dispatch or dual or jit else ""


def _stream(tensor: torch.Tensor) -> str:
    """A kernel may launch on the default stream and the current device."""
    if not tensor.is_cuda:
        return ""
    if (index := tensor.get_device()) != torch._C._cuda_getDevice():
        return "another device"
    stream = torch._C._cuda_getCurrentRawStream(index)  # as a number, since objects take longer; the default one is 0
    return "a stream of its own, or a graph that is captured" if stream else ""


def _tie(kernel: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Let the kernel have these very tensors as its weights: by name where all match, else by order and shape."""
    own = kernel.state_dict()
    by_name = own.keys() == state.keys()
    for name, tensor in zip(state if by_name else own, state.values(), strict=False):
        mine = own[name]
        if len(own) != len(state) or mine.shape != tensor.shape:
            raise NoPlace("the weights of kernel and module do not match")
        if (mine.dtype, mine.device.type) != (tensor.dtype, tensor.device.type) or not tensor.is_contiguous():
            raise NoPlace(f"weights of another dtype, device or layout ({name})")
        owner, _, last = name.rpartition(".")
        module = kernel.get_submodule(owner)
        (module._parameters if last in module._parameters else module._buffers)[last] = tensor  # type: ignore[assignment]
