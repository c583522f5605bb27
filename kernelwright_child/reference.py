"""The reference worker: inputs, expected values and the baseline's time come from here.

It runs the problem's own code and never meets a candidate.
"""

import math
import os
import socket
import sys
import types
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernelwright_child import wire
from kernelwright_child.model_runner import ModelRunner, on_cores, place, seed_draws
from kernelwright_child.models import (
    cast_inputs,
    construct,
    differentiate,
    run_source,
    weights_of,
    widened,
    widened_value,
)
from kernelwright_child.wire import Handler, Message
from kernelwright_child.worker import with_device

CHANGING_LAYERS = "torch.nn."
"""Buffers of torch's own layers (running means and variances) are learnt; those of other modules may be constants."""
SPATIAL = tuple(
    getattr(torch.nn, f"{kind}{axes}d") for kind in ("Conv", "ConvTranspose", "BatchNorm") for axes in (2, 3)
)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of axes."""
COMPILING_THREADS = 4
"""Each takes memory of its own, which the jail limits."""


def note_no_launches() -> None:
    """Note no choice among a Triton kernel's launches from now on: each child chooses at its first call.

    A kernel that another child has compiled would be noted where that child's folder was, which this one must not make.
    Choices of `max-autotune` among entire kernels are noted elsewhere, and go on to be: the compiler's own switch is
    the same for both (`autotune_local_cache`), so it is not that one.
    """
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    AutotuneCache._setup_local_cache = lambda *_: None  # type: ignore[method-assign]


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
        """Find what the reference takes of memory, before it runs for real."""
        return {"plan": plan(message["source"], message["dtype"], message["backward"])}

    def load(self, message: Message, fds: list[int]) -> Message:
        """Run the reference and construct `Model` under the given seed.

        Returns arguments, weights, the names of weights for which another value makes sense, and whether it has layers
        for images or volumes.
        """
        torch.set_num_threads(message["threads"])
        self.namespace = run_source(message["source"], "reference")
        self.dtype = message.get("dtype")
        arguments = self._constructed(message["seed"])
        self.order = [(name, value.shape) for name, value in self.model.state_dict().items()]
        self.is_differentiated = message["direction"] != "forward"
        told = arguments if isinstance(arguments, dict) else list(arguments)
        self.drawn = [told, dict(self.model.state_dict()), _changing(self.model)]
        return place(self.drawn) | {"spatial": any(isinstance(module, SPATIAL) for module in self.model.modules())}

    def _constructed(self, seed: int) -> Any:
        """Construct a new model, used from now on; return its arguments."""
        torch.manual_seed(seed)
        arguments = self.namespace["get_init_inputs"]()
        self.constructor = lambda: construct(self.namespace["Model"], arguments)
        self.construct(seed)
        return arguments

    def construct_seeded(self, message: Message, fds: list[int]) -> Message:
        """Construct as a candidate's process does; return the weights."""
        self.drawn = self.construct(message["seed"], message["vary"])
        return place(self.drawn)

    def construct_again(self, message: Message, fds: list[int]) -> Message:
        """Construct another `Model` under another seed, with the state of the first one; it answers from now on."""
        self.restore({}, [])
        state = self.model.state_dict()
        self._constructed(message["seed"])
        self.model.load_state_dict(state)
        return self.follow({"weights": self.follows}, [])

    def compile(self, message: Message, fds: list[int]) -> Message:
        """Have calls go through torch.compile in the given mode; it compiles when it is called."""
        from torch._inductor import config

        # A pool of processes would outlive the call that started it. What is then read from the environment is how many
        # threads of this process compile the kernels that there are to choose from.
        config.compile_threads = 1
        # On a processor: torch's headers, compiled ahead, would lie where this child's temporary files go and nobody
        # else's kernels find them; to make them takes longer than to compile the kernels of one model without.
        if hasattr(config, "cpp_cache_precompile_headers"):
            config.cpp_cache_precompile_headers = False
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(min(COMPILING_THREADS, torch.get_num_threads()))
        note_no_launches()
        self.run = torch.compile(self.model, mode=message["mode"], dynamic=False)
        return {}

    def channels_last(self, message: Message, fds: list[int]) -> Message:
        """Convert the weights; from now on each call converts its inputs too, and its results come as they are."""
        model = self.model
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = _channels_last(tensor.data)
        self.run = lambda *inputs: model(*tree_map(_channels_last, inputs))
        return {}

    def compilations(self, message: Message, fds: list[int]) -> Message:
        """Return how many graphs were compiled here, and how many were found compiled."""
        from torch._dynamo.utils import counters

        # A graph that is found together with that of its gradients is not counted as the compiler's in every version.
        found = max(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
        return {"made": counters["inductor"]["fxgraph_cache_miss"], "found": found}

    def weights(self, message: Message, fds: list[int]) -> Message:
        """Take other weights; return them as the model holds them, which differs where two share their memory.

        On a device nothing is returned: nobody could read it from here.
        """
        super().weights(message, fds)
        held = dict(self.model.state_dict())
        if any(tensor.is_cuda for tensor in held.values()):
            return {}
        self.drawn = held
        return place(self.drawn)

    def draw(self, message: Message, fds: list[int]) -> Message:
        """Draw fresh inputs under the given seed; with gradients of the outputs where the problem asks for them.

        On the given cores, where another child draws at the same time: torch's OpenMP binds each to the first of all.
        """
        with on_cores(message["cores"]):
            self.drawn = self.draw_values(message["seed"])
        return place(self.drawn)

    def draw_values(self, seed: int) -> list[Any]:
        """Draw the inputs under a seed, on the device that new tensors go to; with gradients where asked for."""
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
        return {"work": {key: work[key] for key in ("bytes", "flops", "least_flops")}}

    def changes(self, message: Message, fds: list[int]) -> Message:
        """Return by number the `inputs` that a call writes to, and the `parameters` and `buffers` that it changes."""
        self.follow({"weights": [(number, "") for number in range(len(self.order))]}, [])
        before = [tensor._version for tensor in self.shared]
        seed_draws(message)
        with torch.no_grad():
            self.model(*wire.unpack(message["arguments"], self.shared))
        found: dict[str, list[int]] = {"inputs": [], "parameters": [], "buffers": []}
        for number, (_, module, name, tensor, value) in enumerate(self.followed):
            now = getattr(module, name).detach().cpu()
            if now.shape != value.shape:
                raise wire.WireError(f"a call gives {name} of the model another shape; let it keep the one it has")
            if not torch.equal(*(one.contiguous().reshape(-1).view(torch.uint8) for one in (now, value))):
                found["parameters" if isinstance(tensor, torch.nn.Parameter) else "buffers"].append(number)
        found["inputs"] = [index for index, tensor in enumerate(self.shared) if tensor._version != before[index]]
        self.restore({}, [])
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return self.follow({"weights": []}, []) | found

    def called(self, arguments: Any, message: Message) -> Any:
        """Call, and return the result with what it changes: followed weights, and inputs that the message names."""
        inputs: list[torch.Tensor] = []
        wire.pack(arguments, inputs)
        result = self.with_state(self.model(*arguments))
        changes = {wire.CHANGED_INPUT.format(index): inputs[index] for index in message.get("changes", ())}
        return {wire.RESULT: result} | changes if changes else result

    def exact_call(self, message: Message, fds: list[int]) -> Message:
        self.results = None
        with torch.no_grad(), widened(self.model) as own:
            self.results = own(self.called(self._widened(message), message))
        return place(self.results)

    def exact_backward(self, message: Message, fds: list[int]) -> Message:
        model, self.results = self.model, None
        with widened(model) as own:
            self.results = own(differentiate(model, weights_of(model, self.order), self._widened(message)))
        return place(self.results)

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


# The plan: what the reference takes of memory, found on fake tensors. Nothing is computed, and no memory is taken.

NAME = "planned"
BLOCK, VOLUMES = 16, 5
"""Channels that oneDNN lays beside each other; axes of a batch of volumes."""


class Alive(TorchDispatchMode):
    """A count of the bytes of all storages that operations have made and that are still held."""

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        """Start from the tensors in `before`: a view of one is not a storage of its own."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = {tensor.untyped_storage()._cdata: 0 for tensor in before}
        self._now = 0
        self.peak_bytes = 0
        self.scratch_bytes = 0
        """Of the convolution that takes most on a processor, see `_scratch`."""

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
    """Find the bytes of inputs, weights, result and float64 result, and the most that a call holds beside these.

    Any error is possible, since a reference may look at values: then there is no plan.
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
    # Gradients of inputs and weights come on top, and those of what lies between.
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
    """Return the bytes of scratch memory that a convolution takes on a processor.

    In float64 one side is held once for each place of the kernel, group after group, whose results are then joined. In
    narrower dtypes input and result are laid out in blocks of channels.
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
