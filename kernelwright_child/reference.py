"""The reference worker: it gives inputs, expected values and the baseline's time.

It runs the problem's own code and never a candidate.
"""

import inspect
import math
import os
import socket
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernelwright_child import wire
from kernelwright_child.model_runner import ModelRunner, describe_result, on_cores, seed_draws, set_threads
from kernelwright_child.models import (
    cast_inputs,
    construct,
    differentiate,
    near,
    run_source,
    weights_of,
    widened,
    widened_value,
)
from kernelwright_child.wire import Handler, Message
from kernelwright_child.worker import with_device

CHANGING_LAYERS = "torch.nn."
"""Module prefix of layers with learnt buffers (running means); buffers of other modules may be constants."""
SPATIAL = tuple(
    getattr(torch.nn, f"{kind}{axes}d") for kind in ("Conv", "ConvTranspose", "BatchNorm") for axes in (2, 3)
)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by number of axes."""
COMPILING_THREADS = 4
"""Compiling threads take memory each, which the jail limits."""


def note_no_launches() -> None:
    """Stop torch's cache of launch choices for a Triton kernel: each child chooses at its first call.

    For a kernel that another child has compiled, it would write to that child's folder, which this one must not make.
    The compiler's own switch `autotune_local_cache` would also stop the cache of `max-autotune`, which is kept.
    """
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    AutotuneCache._setup_local_cache = lambda *_: None  # type: ignore[method-assign]


DRAWS = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "uniform"}
    | {"random", "bernoulli", "multinomial", "exponential", "geometric", "cauchy", "log_normal", "poisson"}
    | {"gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"}
)
RECURRENT = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train")
MODAL: dict[str, tuple[str, ...]] = {
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
    "instance_norm": ("input", "weight", "bias", "running_mean", "running_var", "use_input_stats"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
    "multi_head_attention_forward": (),
    "rrelu": ("input", "lower", "upper", "training"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), RECURRENT),
    **{f"{kind}dropout": ("input", "p", "train") for kind in ("", "alpha_", "feature_", "feature_alpha_")},
    **{f"dropout{axes}d": ("input", "p", "train") for axes in (1, 2, 3)},
}
"""torch's functions that depend on the mode, with the arguments of the form in C++, which has no signature."""


class ModeWatcher(TorchFunctionMode):
    """Watcher of a call for functions of torch that draw, and whose result depends on the module's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, set[str]] = {"batch": set(), "running": set(), "drawing": set(), "silent": set()}

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "").rstrip("_")
        if name in DRAWS:
            self.found["drawing"].add(name)
        elif name in MODAL and (kind := mode_kind(name, given_to(function, MODAL[name], args, kwargs))):
            self.found[kind].add(name)
        return function(*args, **kwargs)


def given_to(
    function: Callable[..., Any], names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a call's arguments by name; `names` are those of a function without a signature."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        if names is RECURRENT and len(args) > len(names) and isinstance(args[4], bool):  # of a packed sequence
            args = [args[0], *args[2:]]
        return dict(zip(names, args, strict=False)) | dict(kwargs)
    bound.apply_defaults()
    return bound.arguments


def mode_kind(name: str, given: Mapping[str, Any]) -> str:
    """Return how a function's result depends on the mode; empty where both modes give the same."""
    trains = given.get("training", given.get("use_input_stats", given.get("train", True)))
    if "running_mean" in given:
        return "" if given["running_mean"] is None else "batch" if trains else "running"
    draws = name == "rrelu" or given.get("p", given.get("dropout_p", given.get("dropout")))
    return "" if not draws else "drawing" if trains else "silent"


class Reference(ModelRunner):
    def __init__(self) -> None:
        super().__init__()
        self.namespace: dict[str, Any] = {}
        self.drawn: Any = None
        self.is_differentiated = False
        self.gradients: list[tuple[torch.Size, torch.dtype]] | None = None
        """Shapes of the floating outputs where gradients are asked for; None until they are learnt."""

    def handlers(self) -> dict[str, Handler]:
        return super().handlers() | {
            "plan": self.plan,
            "construct again": self.construct_again,
            "change weights": self.change_weights,
            "draw": self.draw,
            "trace": self.trace,
            "changes": self.changes,
            "compile": self.compile,
            "channels last": self.channels_last,
            "compilations": self.compilations,
            "exact call": self.exact_call,
            "exact backward": self.exact_backward,
        }

    def plan(self, message: Message, fds: list[int]) -> Message:
        return {"plan": plan(message["source"], message["dtype"], message["backward"])}

    def load(self, message: Message, fds: list[int]) -> Message:
        """Run the reference and construct `Model` under the given seed; with `near`, give it weights near its own.

        Returns arguments, weights, the names of weights that may change, and whether there are layers for images or
        volumes.
        """
        set_threads(message["threads"])
        self.namespace = run_source(message["source"], "reference")
        self.dtype = message.get("dtype")
        arguments = self._constructed(message["seed"])
        if message["near"] is not None:
            self._change_weights(message)
            torch.cuda.empty_cache()  # nothing of it is shared yet
        self.order = [(name, value.shape) for name, value in self.model.state_dict().items()]
        self.is_differentiated = message["direction"] != "forward"
        given = arguments if isinstance(arguments, dict) else list(arguments)
        self.drawn = [given, dict(self.model.state_dict()), _changing(self.model)]
        return describe_result(self.drawn) | {
            "spatial": any(isinstance(module, SPATIAL) for module in self.model.modules())
        }

    def _constructed(self, seed: int) -> Any:
        """Construct a new model, used from now on; return its arguments."""
        torch.manual_seed(seed)
        arguments = self.namespace["get_init_inputs"]()
        self.constructor = lambda: construct(self.namespace["Model"], arguments)
        self.construct(seed)
        return arguments

    def change_weights(self, message: Message, fds: list[int]) -> Message:
        """Change the weights, and return all as the model holds them."""
        self.restore({}, [])
        self._change_weights(message)
        self.drawn = {name: value.cpu() for name, value in self.model.state_dict().items()}
        return self.follow({"weights": self.follows}, []) | describe_result(self.drawn)

    def _change_weights(self, message: Message) -> None:
        """Give each weight that may change values near its own, drawn under a seed; one with several names once."""
        model, device = self.model, "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
        held = dict(model.named_buffers(remove_duplicate=False)) | dict(model.named_parameters(remove_duplicate=False))
        known = model.state_dict()
        given = [held[name].detach() for name in _changing(model) if name in known]
        own = {(value.data_ptr(), value.shape): value for value in given if value.is_floating_point()}
        seeds = torch.randint(2**62, (len(own),), generator=torch.Generator().manual_seed(message["near"])).tolist()
        with on_cores(message["cores"]):
            for value, seed in zip(own.values(), seeds, strict=True):
                value.copy_(near(value, seed, device, value if value.is_contiguous() else None))

    def construct_seeded(self, message: Message, fds: list[int]) -> Message:
        self.drawn = self.construct(message["seed"], message["vary"])
        return describe_result(self.drawn)

    def construct_again(self, message: Message, fds: list[int]) -> Message:
        """Construct another `Model` under another seed with the state of the first one, used from now on."""
        self.restore({}, [])
        state = self.model.state_dict()
        self._constructed(message["seed"])
        self.model.load_state_dict(state)
        return self.follow({"weights": self.follows}, [])

    def compile(self, message: Message, fds: list[int]) -> Message:
        """Call through torch.compile in the given mode from now on; the first call compiles."""
        from torch._inductor import config

        # A pool of processes would outlive its call. The variable below is the number of threads of this process that
        # compile the kernels to choose from.
        config.compile_threads = 1
        # On a processor: precompiled headers lie in this child's temporary folder, where no other child finds them, and
        # take longer to make than the kernels of one model without them.
        if hasattr(config, "cpp_cache_precompile_headers"):
            config.cpp_cache_precompile_headers = False
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(min(COMPILING_THREADS, torch.get_num_threads()))
        note_no_launches()
        self.run = torch.compile(self.model, mode=message["mode"], dynamic=False)
        return {}

    def channels_last(self, message: Message, fds: list[int]) -> Message:
        """Convert the weights to channels_last; from now on each call converts its inputs too."""
        model = self.model
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = _channels_last(tensor.data)
        self.run = lambda *inputs: model(*tree_map(_channels_last, inputs))
        return {}

    def compilations(self, message: Message, fds: list[int]) -> Message:
        """Return the numbers of graphs that were compiled, and that were found compiled."""
        from torch._dynamo.utils import counters

        # Not every version counts a graph that is found together with that of its gradients as the compiler's.
        found = max(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
        return {"made": counters["inductor"]["fxgraph_cache_miss"], "found": found}

    def draw(self, message: Message, fds: list[int]) -> Message:
        """Draw inputs under the given seed, with gradients of the outputs where the problem has a backward pass.

        On the given cores, for children that draw at the same time: torch's OpenMP binds each to the first core.
        """
        with on_cores(message["cores"]):
            self.drawn = self.draw_values(message["seed"])
        return describe_result(self.drawn)

    def draw_values(self, seed: int) -> list[Any]:
        """Draw inputs under a seed on torch's default device, with gradients for a backward pass."""
        torch.manual_seed(seed)
        inputs = cast_inputs(list(self.namespace["get_inputs"]()), self.dtype)
        if not self.is_differentiated:
            return inputs
        if self.gradients is None:
            flat: list[torch.Tensor] = []
            with torch.no_grad():
                wire.pack(self.model(*inputs), flat)
            self.gradients = [(tensor.shape, tensor.dtype) for tensor in flat if tensor.is_floating_point()]
        return [inputs, [torch.randn(shape).to(dtype) for shape, dtype in self.gradients]]

    def trace(self, message: Message, fds: list[int]) -> Message:
        from kernelwright_child.roofline import trace

        def call(model: torch.nn.Module, values: Any) -> Any:
            return differentiate(model, weights_of(model, self.order), values)

        values = wire.unpack(message["arguments"], self.shared)
        work = trace(self.model, values, call if self.is_differentiated else None)
        with ModeWatcher() as watcher, torch.no_grad():  # by itself: it keeps torch from its shortcuts
            self.model(*(values[0] if self.is_differentiated else values))
        mode = {"is_training": self.model.training, **{kind: sorted(names) for kind, names in watcher.found.items()}}
        return {"work": {key: work[key] for key in ("bytes", "flops", "least_flops")} | {"mode": mode}}

    def changes(self, message: Message, fds: list[int]) -> Message:
        """Return the numbers of `inputs` that a call writes to, and of `parameters` and `buffers` that it changes."""
        self.follow({"weights": [(number, "") for number in range(len(self.order))]}, [])
        before = [tensor._version for tensor in self.shared]
        seed_draws(message)
        with torch.no_grad():
            self.model(*wire.unpack(message["arguments"], self.shared))
        found: dict[str, list[int]] = {"inputs": [], "parameters": [], "buffers": []}
        for number, (_, module, name, tensor, value) in enumerate(self.followed):
            now = getattr(module, name).detach().cpu()
            if now.shape != value.shape:
                raise wire.WireError(f"a call changes the shape of {name} in the model; let it keep its shape")
            if not torch.equal(*(one.contiguous().reshape(-1).view(torch.uint8) for one in (now, value))):
                found["parameters" if isinstance(tensor, torch.nn.Parameter) else "buffers"].append(number)
        found["inputs"] = [index for index, tensor in enumerate(self.shared) if tensor._version != before[index]]
        self.restore({}, [])
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return self.follow({"weights": []}, []) | found

    def called(self, arguments: Any, message: Message) -> Any:
        """Call, and return the result with followed weights and the changed inputs that the message names."""
        inputs: list[torch.Tensor] = []
        wire.pack(arguments, inputs)
        result = self.with_state(self.model(*arguments))
        changes = {wire.CHANGED_INPUT.format(index): inputs[index] for index in message.get("changes", ())}
        return {wire.RESULT: result} | changes if changes else result

    def exact_call(self, message: Message, fds: list[int]) -> Message:
        self.results = None
        with torch.no_grad(), widened(self.model) as own:
            self.results = own(self.called(self._widened(message), message))
        return describe_result(self.results)

    def exact_backward(self, message: Message, fds: list[int]) -> Message:
        model, self.results = self.model, None
        with widened(model) as own:
            self.results = own(differentiate(model, weights_of(model, self.order), self._widened(message)))
        return describe_result(self.results)

    def _widened(self, message: Message) -> Any:
        return wire.unpack(message["arguments"], [widened_value(tensor) for tensor in self.shared])


def _channels_last(value: Any) -> Any:
    is_one = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() in CHANNELS_LAST
    return value.contiguous(memory_format=CHANNELS_LAST[value.dim()]) if is_one else value


def _changing(model: torch.nn.Module) -> list[str]:
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).__module__.startswith(CHANGING_LAYERS):
            names |= {f"{path}.{name}" if path else name for name, _ in module.named_buffers(recurse=False)}
    return sorted(names)


# The plan of the reference's memory, found on fake tensors without computing or allocating.

NAME = "planned"
BLOCK, VOLUMES = 16, 5
"""Channels in a block of oneDNN; axes of a batch of volumes."""


class Alive(TorchDispatchMode):
    """A count of the bytes of all living storages that operations have made."""

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        """Exclude the storages of the tensors in `before`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = {tensor.untyped_storage()._cdata: 0 for tensor in before}
        self._now = 0
        self.peak_bytes = 0
        self.scratch_bytes = 0
        """Scratch memory of the largest convolution on a processor; see `_scratch`."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        if function is torch.ops.aten.convolution.default:
            taken = _scratch(arguments[0], arguments[1], result, arguments[6])
            self.scratch_bytes = max(self.scratch_bytes, taken)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._bytes:
            self._bytes[key] = storage.nbytes()
            self._now += self._bytes[key]
            self.peak_bytes = max(self.peak_bytes, self._now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._bytes.pop(key, 0)


def plan(source: str, dtype: str | None, differentiated: bool) -> dict[str, int]:
    """Find the bytes of inputs, weights, result and float64 result, and the peak of a call besides inputs and weights.

    May raise any error, since a reference may depend on values; then the memory is not planned.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    namespace = types.ModuleType(NAME)
    sys.modules[NAME] = namespace
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _planned(Path(source).read_text(encoding="utf-8"), vars(namespace), dtype, differentiated)
    finally:
        del sys.modules[NAME]


def _planned(text: str, namespace: dict[str, Any], dtype: str | None, differentiated: bool) -> dict[str, int]:
    exec(compile(text, NAME, "exec"), namespace)
    model = construct(namespace["Model"], namespace["get_init_inputs"]())
    state = dict.fromkeys([*model.parameters(), *model.buffers()])
    for tensor in state if dtype is not None else ():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(getattr(torch, str(dtype)))
    inputs = cast_inputs(list(namespace["get_inputs"]()), dtype)
    with Alive([*_tensors(inputs), *state]) as alive, torch.set_grad_enabled(differentiated):
        results = _tensors(model(*inputs))
    # Gradients of inputs, weights and intermediate results are added.
    more = sum(map(_bytes, [*_tensors(inputs), *state])) + alive.peak_bytes if differentiated else 0
    return {
        "inputs": sum(map(_bytes, _tensors(inputs))),
        "weights": sum(map(_bytes, state)),
        "result": sum(map(_bytes, results)),
        "exact": sum(tensor.numel() * max(8, tensor.element_size()) for tensor in results),
        "peak": alive.peak_bytes + more,
        "scratch": alive.scratch_bytes,
    }


def _scratch(given: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, transposed: bool) -> int:
    """Return the bytes of scratch memory of a convolution on a processor.

    In float64 one side is held once per position of the kernel, group after group, and the results are joined. In
    narrower dtypes input and result are stored in blocks of channels.
    """
    held, wide = (given, result) if transposed else (result, given)
    columns = math.prod(weight.shape[1:]) * held.numel() // held.shape[1]
    if transposed and given.dim() == VOLUMES:
        columns //= given.shape[0]  # one after the other
    joined = result.numel() if weight.shape[1] < wide.shape[1] else 0
    blocks = sum(_bytes(tensor) * -(-tensor.shape[1] // BLOCK) * BLOCK // tensor.shape[1] for tensor in (given, result))
    return 8 * (columns + joined) + blocks


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main() -> None:
    wire.serve(socket.socket(fileno=int(sys.argv[1])), with_device(Reference()))
    os._exit(0)
