"""Kernels in the place of modules, or of operators inside their `forward`, behind guards; else the module's own code.

Needs torch alone: packages that are exported carry this file. A module stays the object that it was, with its names,
parameters and hooks; only its class becomes one derived from its own. A copy or a pickle of it is of the old class.
"""

import ast
import copyreg
import functools
import logging
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from kernelwright.programs.graphs import CallGraph, CannotCut, export_call, owner

LOG = logging.getLogger(__name__)
ALIGNED = 64
"""Bytes: torch gives memory on such places, and a kernel may load vectors from there."""
MOST_KINDS = 16
"""Of calls, each with a graph of its own; a module whose settings change in every call would make ever more."""
PLAIN = (bool, int, float, str, type(None))
Make = Callable[[], nn.Module]
Plan = Callable[[nn.Module, list[Any]], Any]
Piece = tuple[list[fx.Node], list[fx.Node], list[fx.Node]]
"""Nodes one after another, their inputs, and those whose values are used elsewhere."""


class NoPlace(ValueError):
    """A kernel cannot take the place where it should; the module stays as it was."""


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
    """Name the difference of a tensor from the one that was seen; empty where there is none."""
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
    """Return the structure of a call with that many arguments, each a leaf; always the same object, for `is`."""
    return pytree.tree_structure(((0,) * count, {}))


def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a call. torch's way takes longer than a small kernel, and most calls have only tensors."""
    if not kwargs and all(type(one) is torch.Tensor for one in args):
        return list(args), _of_tensors(len(args))
    return pytree.tree_flatten((args, kwargs))


class TiedKernel:
    """A kernel that takes the weights of the module in whose place it is called."""

    def __init__(self, part: dict[str, Any], make: Make, copies: bool) -> None:
        """`part`: its record; `make` gives a kernel with weights of its own.

        `copies`: whether it keeps the memory of its results, so that they are copied.
        """
        self.part, self._make, self._copies = part, make, copies
        steps = {name: own.split(".") for name, own in part["state"].items()}
        self._paths = {name: (path[:-1], path[-1]) for name, path in steps.items()}
        self._written = [place for place, name in enumerate(part["state"]) if name in part["written"]]
        self._made: tuple[Any, nn.Module] | None = None

    def copy(self, part: dict[str, Any] | None = None) -> "TiedKernel":
        return TiedKernel(part or self.part, self._make, self._copies)

    def call(self, module: nn.Module, inputs: Sequence[Any]) -> Any:
        outputs = self.over(module)(*inputs)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, outputs) if self._copies else outputs

    def over(self, module: nn.Module) -> nn.Module:
        """Return the kernel with the module's weights; a new one where these have changed, since it may keep copies."""
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


def _tie(kernel: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give the kernel these very tensors as its weights: by name where all match, else by order and shape."""
    own = kernel.state_dict()
    by_name = own.keys() == state.keys()
    for name, tensor in zip(state if by_name else own, state.values(), strict=False):
        mine = own[name]
        if len(own) != len(state) or mine.shape != tensor.shape:
            raise NoPlace("the weights of kernel and module do not match")
        if (mine.dtype, mine.device.type) != (tensor.dtype, tensor.device.type) or not tensor.is_contiguous():
            raise NoPlace(f"weights of another dtype, device or layout ({name})")
        owner_name, _, last = name.rpartition(".")
        module = kernel.get_submodule(owner_name)
        (module._parameters if last in module._parameters else module._buffers)[last] = tensor  # type: ignore[assignment]


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
        """The one that it replaces."""
        self._inside: list[nn.Module] = []
        self._training: bool = kernels[0].part["training"]
        self._gradients = all(kernel.part["direction"] != "forward" for kernel in kernels)
        self._sizes = [CallSize.of(size) for size in kernels[0].part["sizes"] if size["call"]]

    def put(self, module: nn.Module) -> None:
        """Replace the module from now on. `NoPlace` where its state is not what the part has."""
        if "forward" in module.__dict__:
            raise NoPlace("its forward was replaced by somebody else")
        self._inside = [one for one in module.modules() if one is not module]
        for kernel in self.kernels:
            kernel.over(module)
        self.own, self.module = type(module), module
        self._derived = _derived(self)
        self.enable(True)

    def enable(self, on: bool) -> None:
        """Replace the module, or let it be of its own class; the kernel is kept."""
        self.module.__class__ = self._derived if on else self.own

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
        """Return the kernel's result in the module's form. `NoPlace` where the kernel was not judged for this call."""
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
        functorch = torch._C._functorch.peek_interpreter_stack() is not None
        dispatch = torch._C._len_torch_dispatch_stack() > 0
        dual = torch.autograd.forward_ad._current_level >= 0
        if functorch or dispatch or dual or torch._C._get_tracing_state() is not None:
            return "somebody traces the operators"
        return _stream(tensors[0]) if tensors else ""


def _stream(tensor: torch.Tensor) -> str:
    """Name the reason where a kernel, which may launch on the default stream, cannot run; empty for none."""
    if not tensor.is_cuda:
        return ""
    if (index := tensor.get_device()) != torch._C._cuda_getDevice():
        return "another device"
    stream = torch._C._cuda_getCurrentRawStream(index)  # as a number, since objects take longer; the default one is 0
    return "a stream of its own, or a graph that is captured" if stream else ""


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
    """Return whether two calls give the same memory, so that the second would overwrite what the first has given."""
    with torch.no_grad():
        results = [pytree.tree_leaves(kernel(*inputs)) for _ in range(2)]  # both alive, so neither's memory is free
    first, second = (
        {one.untyped_storage().data_ptr() for one in each if isinstance(one, torch.Tensor)} for each in results
    )
    return bool((first & second) - {0})


class SplicedReplacement(Replacement):
    """Kernels for runs of operators inside a `forward`: the graph of a call, with kernels in the place of their runs.

    The graph is exported in the first call of each kind. Modules within that have kernels of their own stay calls.
    """

    def put(self, module: nn.Module) -> None:
        self._plans: dict[Any, Plan | str] = {}
        self._within = {
            name: replacement
            for name, one in module.named_modules()
            if one is not module and (replacement := replacement_of(one)) is not None
        }
        super().put(module)

    def _result(self, module: nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> Any:
        key = (structure, tuple(map(_kind, leaves)), torch.is_grad_enabled(), _settings(module))
        if key not in self._plans:
            if len(self._plans) == MOST_KINDS:
                raise NoPlace("its calls are of too many kinds")
            self._plans[key] = self._planned(module, leaves, structure)
        plan = self._plans[key]
        if isinstance(plan, str):
            raise NoPlace(plan)
        return plan(module, leaves)

    def _planned(self, module: nn.Module, leaves: list[Any], structure: pytree.TreeSpec) -> Plan | str:
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        enabled = [one for one in (self, *self._within.values()) if replacement_of(one.module) is one]
        for one in enabled:
            one.enable(False)
        try:
            graph = export_call(module, args, kwargs)
        except CannotCut as error:
            return str(error)
        finally:
            for one in enabled:
                one.enable(True)
        if any(kernel.part["run"]["graph"] != graph.digest for kernel in self.kernels):
            return "its graph or a shape in it is another than that which was captured"
        nodes = {node.name: node for node in graph.program.graph.nodes}
        for number, kernel in enumerate(self.kernels):
            run, inputs = kernel.part["run"], kernel.part["sizes"][0]["inputs"]
            names = (run["nodes"], [one["node"] for one in inputs], run["outputs"])
            taken, given, ends = ([nodes[name] for name in each] for each in names)
            call = _guarded(kernel, module, [one["tensor"] for one in inputs])
            _splice(graph, f"kernel_{number}", (taken, given, ends), call)
        for number, (name, replacement) in enumerate(self._within.items()):
            piece = _piece(graph, name)
            if piece is not None:
                _splice(graph, f"within_{number}", piece, replacement.module.__call__)
        return _plan(graph)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad
    return repr(leaf)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """List what a `forward` may depend on besides its arguments: its modules and their plain attributes."""
    return tuple(
        (id(one), *((name, value) for name, value in vars(one).items() if isinstance(value, PLAIN)))
        for one in module.modules()
    )


def _guarded(kernel: TiedKernel, module: nn.Module, seen: Sequence[dict[str, Any]]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        for value, one in zip(inputs, seen, strict=True):
            if why := differs(value, one):
                raise NoPlace(why)
        return kernel.call(module, inputs)

    return call


def _piece(graph: CallGraph, name: str) -> Piece | None:
    """Return the nodes of a module within, where it takes one tensor and gives one; None where it does not."""
    nodes = [node for node in graph.program.graph.nodes if f"{owner(node)}.".startswith(f"{name}.")]
    nodes = [node for node in nodes if node.op not in ("placeholder", "output")]
    inside = set(nodes)
    taken = {one for node in nodes for one in node.all_input_nodes if one not in inside and one.name not in graph.state}
    ends = [node for node in nodes if any(user not in inside for user in node.users)]
    whole = nodes and len(taken) == 1 and len(ends) == 1 and not any(one.name in graph.constants for one in taken)
    return (nodes, list(taken), ends) if whole else None


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _splice(graph: CallGraph, name: str, piece: Piece, function: Callable[..., Any]) -> None:
    nodes, inputs, ends = piece
    graph.program.graph_module.add_submodule(name, _Called(function))
    inside, within = set(nodes), graph.program.graph
    with within.inserting_after(nodes[-1]):
        call = within.call_module(name, tuple(inputs))
    results = [call]
    if len(ends) > 1:
        with within.inserting_after(call):
            results = [within.call_function(operator.getitem, (call, place)) for place in range(len(ends))]
    for end, result in zip(ends, results, strict=True):
        end.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside and user is not call)
    for node in reversed(nodes):
        within.erase_node(node)


def _plan(graph: CallGraph) -> Plan:
    program = graph.program
    getters, leaf = [], 0
    for spec in program.graph_signature.input_specs:
        getters.append(_getter(program, spec, leaf))
        leaf += spec.kind is InputKind.USER_INPUT
    made = fx.GraphModule(program.graph_module, program.graph)
    result = program.call_spec.out_spec
    assert result is not None, "an exported program has one"

    def plan(module: nn.Module, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(list(made(*[getter(module, leaves) for getter in getters])), result)

    return plan


def _getter(program: Any, of: Any, leaf: int) -> Callable[[nn.Module, list[Any]], Any]:
    if of.kind is InputKind.USER_INPUT:
        return lambda module, leaves: leaves[leaf]
    if of.kind is InputKind.CONSTANT_TENSOR:
        constant = program.constants[str(of.target)]
        return lambda module, leaves: constant
    owner_name, _, last = str(of.target).rpartition(".")
    return lambda module, leaves: getattr(module.get_submodule(owner_name), last)
